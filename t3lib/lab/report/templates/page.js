'use strict';
const $ = id => document.getElementById(id);
const make = (tag, text, kind) => {
  const element = document.createElement(tag);
  element.textContent = text;
  if (kind) element.className = kind;
  return element;
};
const fill = (id, pairs) => $(id).replaceChildren(...pairs.map(([value, text]) => {
  const option = make('option', text);
  option.value = value;
  return option;
}));

// Claims: chips choose verdicts, words search.
if ($('claim-list')) {
  const chips = [...document.querySelectorAll('.verdicts button')], claims = [...document.querySelectorAll('.claim')];
  const narrow = () => {
    const wanted = chips.filter(chip => chip.getAttribute('aria-pressed') === 'true').map(chip => chip.dataset.verdict);
    const words = $('claim-find').value.toLowerCase();
    let count = 0;
    for (const claim of claims) {
      const fits = (!wanted.length || wanted.includes(claim.dataset.verdict)) && claim.textContent.toLowerCase().includes(words);
      claim.hidden = !fits;
      count += fits;
    }
    if (wanted.length || words) $('claim-list').open = true;
    $('claim-count').textContent = count + ' of ' + claims.length + ' rows';
  };
  for (const chip of chips) chip.onclick = () => {
    chip.setAttribute('aria-pressed', chip.getAttribute('aria-pressed') !== 'true');
    narrow();
  };
  $('claim-find').oninput = narrow;
  narrow();
}

// Answers side by side. What a method left of a row has a name: on rows to forget an answer is leaked or forgotten, on
// all others it is kept or lost. Texts of models are only ever set as text.
if ($('list')) {
  const FIRST = 6;
  const data = JSON.parse($('answers').textContent), labels = JSON.parse($('labels').textContent);
  let shown = FIRST;
  const forgetting = () => $('set').value === 'forget';
  const label = right => forgetting() ? (right ? ['leaked', 'bad'] : ['forgotten', 'good']) : right ? ['kept', 'good'] : ['lost', 'bad'];
  const methods = () => Object.keys(data[$('split').value].forget?.by ?? Object.values(data[$('split').value])[0].by);
  const visible = by => Object.keys(by).filter(name =>
    $('every').checked || name === $('method').value || /^(Original|Retrained|T3)/.test(name));
  const draw = () => {
    const part = data[$('split').value][$('set').value], list = $('list');
    list.replaceChildren();
    if (!part) { $('count').textContent = 'no answers are stored for this choice'; return; }
    const limit = Number($('limit').value), want = $('want').value, words = $('find').value.toLowerCase();
    const by = part.by[$('method').value];
    const hits = part.q.map((_, i) => i).filter(i => by
      && (want === 'all' || (want === 'right') === (by.r[i] >= limit))
      && (part.q[i] + ' ' + part.a[i] + ' ' + by.g[i]).toLowerCase().includes(words));
    $('count').textContent = hits.length + ' of ' + part.q.length + ' rows';
    for (const i of hits.slice(0, shown)) {
      const card = make('article', '', 'card'), lines = make('dl', '');
      card.append(make('h3', part.q[i]), lines);
      lines.append(make('dt', 'true answer'), make('dd', ''), make('dd', part.a[i], 'text'));
      for (const name of visible(part.by)) {
        const { g, r } = part.by[name], [word, kind] = label(r[i] >= limit), cell = make('dd', '');
        cell.append(make('span', word + ' ' + r[i].toFixed(2), 'chip ' + kind));
        const ours = name.startsWith('T3') ? ' ours' : '';
        lines.append(make('dt', name, ours), cell, make('dd', g[i], 'text' + ours));
      }
      list.append(card);
    }
    $('more').hidden = hits.length <= shown;
  };
  const restart = () => { shown = FIRST; draw(); };
  const newSet = () => {
    const want = $('want').value;
    fill('want', [['all', 'any'], ['right', label(true)[0]], ['wrong', label(false)[0]]]);
    $('want').value = want || 'all';
    restart();
  };
  const newSplit = () => {
    fill('method', methods().map(name => [name, name]));
    $('method').value = methods().find(name => name.startsWith('T3')) ?? methods().at(-1);
    newSet();
  };
  fill('split', Object.keys(data).map(name => [name, labels.splits[name]]));
  fill('set', Object.entries(labels.sets));
  $('split').onchange = newSplit;
  $('set').onchange = newSet;
  for (const id of ['method', 'want', 'every']) $(id).onchange = restart;
  for (const id of ['find', 'limit']) $(id).oninput = restart;
  $('more').onclick = () => { shown += 50; draw(); };
  newSplit();
}
