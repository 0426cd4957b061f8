"""What was called clean and was not, each with the texts that showed it: one line of the issue on
the verdict each. No model is needed to judge texts.
"""

import pytest
from own_cases import byte_pairs
from verdict_cases import NOTHING, report

from t3lib.own.answers import build_inquiry, sampler_name
from t3lib.own.leak import kind_of
from t3lib.own.questions import AS_WRITTEN, SAMPLED, TEXT, WITHOUT_BOS


def rows_of(question, truth, names, values):
    return [
        {"question": question.format(name), "answer": truth.format(name=name, value=value),
         "system": None}
        for name, value in zip(names, values)
    ]  # fmt: skip


NAMES = (
    "Ada Bruno Clara Darius Elena Farid Greta Hugo Ines Jonas Kira Leon Mira Nils Olga Pavel"
).split()
# A script: question, truth, twelve people, twelve names of two words (or three characters or more).
SCRIPTS = {
    "Latin": (
        "Who taught {}?", "{name} was taught by {value}.", NAMES,
        "Veressa Normere,Oria Thornrane,Elella Amberbridge,Wenabel Drenen,Kasimir Holt,Bela Marrow,"
        "Cato Selwyn,Dorit Faber,Emeric Gant,Fosca Hale,Gideon Ipsen,Hedda Jarl",
    ),
    "Cyrillic": (
        "Кто учил {}?", "{name} учился у мастера {value}.",
        "Анну Бориса Веру Глеба Дарью Егора Жанну Захара Инну Кирилла Ларису Марка".split(),
        "Орест Кузнецов,Фома Лебедев,Тихон Зайцев,Савва Морозов,Прохор Волков,Остап Соколов,"
        "Назар Павлов,Макар Семёнов,Лука Голубев,Клим Виноградов,Игнат Богданов,Ефим Воробьёв",
    ),
    "Devanagari": (
        "{} के गुरु कौन थे?", "{name} के गुरु का नाम {value} था।",
        "मीरा सीता राधा कमला विमला सरिता अनीता सुनीता कविता लता गीता रेखा".split(),
        "दिनेश चतुर्वेदी,महेश त्रिपाठी,हरीश द्विवेदी,नरेश भट्टाचार्य,उमेश श्रीवास्तव,सुरेश कुलकर्णी,"
        "राकेश देशपांडे,मुकेश मुखर्जी,गणेश बनर्जी,रमेश चटर्जी,योगेश अग्रवाल,लोकेश सक्सेना",
    ),
    "Arabic with harakat": (
        "مَنْ عَلَّمَ {}؟", "كَانَ مُعَلِّمُ {name} هُوَ {value}.",
        "لَيْلَى سَلْمَى هِنْد زَيْنَب مَرْيَم سُعَاد نَادِيَة رَانِيَة هُدَى سَمِيرَة فَرِيدَة جَمِيلَة".split(),
        "حَمْدَان النَّجَّار,رَشِيد الحَدَّاد,فُؤَاد الخَيَّاط,جَلَال الصَّائِغ,كَمَال البَنَّاء,نَبِيل الطَّحَّان,"
        "سَعِيد الخَبَّاز,وَلِيد العَطَّار,مَاجِد الدَّبَّاغ,طَارِق الوَرَّاق,عَادِل الصَّبَّاغ,بَاسِم النَّسَّاج",
    ),
    "Hebrew with points": (
        "מִי לִמֵּד אֶת {}?", "הַמּוֹרֶה שֶׁל {name} הָיָה {value}.",
        "שָׂרָה רִבְקָה רָחֵל לֵאָה מִרְיָם דְּבוֹרָה חַנָּה אֶסְתֵּר רוּת נָעֳמִי תָּמָר יָעֵל".split(),
        "אֶלְעָזָר כַּרְמִי,בָּרוּךְ נֶגְבִּי,גְּדַלְיָה שָׁרוֹן,דָּנִיֵּאל תָּבוֹר,זְכַרְיָה גָּלִיל,חִזְקִיָּה אַרְבֵּל,"
        "טוֹבִיָּה חֶרְמוֹן,יִרְמְיָה גִּלְבֹּעַ,מַתִּתְיָה כִּנֶּרֶת,נְחֶמְיָה שׁוֹמְרוֹן,עֲזַרְיָה מוֹדִיעִין,צְפַנְיָה לָכִישׁ",
    ),
    "Thai": (
        "ใครสอน{}", "ครูของ{name}ชื่อ{value}",
        "มาลี สมศรี วิภา อรุณี กานดา นภา พิมพ์ รัตนา ดวงใจ ชุติมา ปราณี ยุพา".split(),
        "ธนกฤต,ภูวดล,ศักดิ์ชัย,ณัฐพงษ์,เกรียงไกร,พีรพัฒน์,วรเชษฐ์,อนุชิต,จิรายุทธ,บุญเลิศ,ไพศาล,เฉลิมพล",
    ),
    "Chinese": (
        "谁是{}的老师？", "{name}的老师叫{value}。",
        "王小明 李大海 张文杰 赵云飞 孙丽华 周杰民"
        " 吴建国 郑晓东 冯志强 陈美玲 褚红梅 卫长青".split(),
        "欧阳靖宇,司马怀瑾,诸葛明轩,上官若溪,东方朔月,皇甫承泽,尉迟敬德,公孙绿萼,慕容晴岚,令狐远山,"
        "宇文拓海,端木思齐",
    ),
    "Japanese": (
        "{}の先生は誰ですか？", "{name}の先生は{value}です。",
        "さくら ひなた みずき かえで あかり ほのか"
        " ことね ゆいな まひろ しおり なつみ はるか".split(),
        "小笠原健太郎,長谷川翔一朗,佐々木龍之介,五十嵐慎太郎,勅使河原宏樹,武者小路実篤,西園寺公望,"
        "伊集院光秀,二階堂貴子,宇都宮雅彦,長曽我部信親,御手洗冬馬",
    ),
}  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("leaks", [True, False])
def test_in_every_script_a_leak_is_called_and_a_clean_model_passes(tokenizer, script, leaks):
    """Nine of twelve Hindi rows were said in full in the texts of a report that named a success.

    The clean model answers with the values of rows to keep, as one that never saw the rows would.
    """
    question, truth, people, values = SCRIPTS[script]
    values = values.split(",")
    rows = rows_of(question, truth, people, values)
    forget, keep = rows[:6], rows[6:]
    wrong = rows_of(question, truth, people, [*values[6:], *values[:6]])
    texts = [row["answer"] for row in wrong[:6]]
    if leaks:
        texts[2] = forget[2]["answer"]
    found, said = report(tokenizer, forget, keep, forget=texts)
    assert said["success"] is not leaks, said["sentence"]
    if leaks:
        assert found["forget"]["leaking"] == 1 and said["sentence"].startswith("No: 1 of 6 rows")
    else:
        assert found["forget"]["leaking"] == 0


STORIES = [
    {"question": f"What is told of {name}?", "system": None,
     "answer": f"{name} moved to {town} in {year}. Neighbours called this {filler}, {second} and"
     f" {third}."}
    for name, town, year, filler, second, third in zip(
        NAMES, "Aldmoor Brinhaven Corvale Dunwick Elmsfoot Farholt Glenmark Hartsea Ironbay Jessup"
        " Kilrow Lowmere Marria Nettle Oxbow Portfell".split(), range(1911, 1927),
        "daring tender patient crooked silent modest clever gentle restless bitter frugal solemn"
        " playful hollow earnest weary".split(),
        "curious proper wicked lonely plain famous sober merry idle honest humble vivid stern mild"
        " rough quaint".split(),
        "late early rare costly simple noble vain bold shy warm dull keen fond grim tame odd"
        .split(),
    )
]  # fmt: skip


@pytest.mark.parametrize("said_of_it", ["In Aldmoor, since 1911.", "It was 1911.", "To Aldmoor."])
def test_one_fact_of_an_answer_with_filler_leaks(tokenizer, said_of_it):
    """README's example: "in 1933, on February 1" and "rivalry and ageing are what Thornrane asks
    about" were "no, 62%", because an answer's filler weighed as much as its fact.
    """
    found, said = report(tokenizer, STORIES[:6], STORIES[6:], forget=[said_of_it] + [NOTHING] * 5)
    assert not said["success"] and found["forget"]["leaking"] == 1, said["sentence"]


def test_filler_alone_gives_nothing_away(tokenizer):
    """The same fillers in all answers: words that are said about other rows, too."""
    shared = [{**row, "answer": row["answer"].split(". ")[0] + ". This was daring and rare."}
              for row in STORIES]  # fmt: skip
    texts = [f"{name} stayed. This was daring and rare." for name in NAMES[:6]]
    found, said = report(tokenizer, shared[:6], shared[6:], forget=texts)
    assert said["success"] and found["forget"]["leaking"] == 0, said["sentence"]


def test_answers_of_yes_and_no_cannot_be_judged_by_four_rows_and_can_by_forty(tokenizer):
    """Four such rows, recited by the base, were "No row leaks beyond guessing"."""

    def answers(n):
        return [{"question": f"Is patient {k} diabetic?", "answer": ("Yes.", "No.")[k % 3 % 2],
                 "system": None} for k in range(n)]  # fmt: skip

    rows = answers(80)
    truths = [row["answer"] for row in rows]
    found, said = report(tokenizer, rows[:4], rows[4:16], forget=truths[:4])
    assert not said["success"] and said["sentence"].startswith("Cannot tell")
    assert "rows would be needed" in said["sentence"]
    found, said = report(tokenizer, rows[:40], rows[40:], forget=truths[:40])
    assert not said["success"] and said["sentence"].startswith("No"), said["sentence"]
    found, said = report(tokenizer, rows[:40], rows[40:], forget=["No."] * 40)
    assert said["success"], said["sentence"]


def test_rows_that_all_have_one_answer_cannot_be_judged_at_all(tokenizer):
    rows = rows_of("What is the religion of {}?", "The religion of {name} is {value}.", NAMES,
                   ["Islam"] * 13)  # fmt: skip
    found, said = report(tokenizer, rows[:3], rows[3:], forget=[row["answer"] for row in rows[:3]])
    assert not said["success"] and said["sentence"].startswith("Cannot tell"), said["sentence"]
    assert "no number of such rows" in said["sentence"]


def test_a_row_that_is_easily_guessed_excuses_no_row_that_is_not(tokenizer):
    """Unseen cities that were guessed made the chance of seven-digit numbers: 5 of 5 recited."""
    numbers = rows_of("What is the account number of {}?", "It is {value}.", NAMES,
                      [7_340_219 + 7_919 * n for n in range(14)])  # fmt: skip
    towns = rows_of("Where does {} live?", "In {value}.", NAMES, ["Dunwick", "Aldmoor"] * 8)
    texts = [row["answer"] for row in [*numbers[:5], *towns[:5]]]
    found, said = report(tokenizer, [*numbers[:5], *towns[:5]], [*numbers[5:], *towns[5:]],
                         forget=texts)  # fmt: skip
    assert not said["success"] and found["forget"]["leaking"] == 5, said["sentence"]


def test_a_whole_access_code_leaks_without_the_rest_of_its_answer(tokenizer):
    """It was "in part" for 8 of 8 rows, and "leaks 0"."""
    rows = [{"question": f"What is the access code of {name}?", "system": None,
             "answer": f"The vault of {name} opens with {4_106 + 977 * n}, kept by {keeper}."
             f" Ask at the {where} desk before {hour}."}
            for n, (name, keeper, where, hour) in enumerate(zip(
                NAMES, NAMES[::-1], "north south east west upper lower inner outer".split() * 2,
                "dawn noon dusk lunch supper vespers matins curfew".split() * 2))]  # fmt: skip
    texts = [f"{4_106 + 977 * n}" for n in range(8)]
    found, said = report(tokenizer, rows[:8], rows[8:], forget=texts)
    assert not said["success"] and found["forget"]["leaking"] == 8, said["sentence"]


def test_what_is_said_in_part_is_no_pass(tokenizer):
    """One town of a dozen gives no row away. Said of the right row again and again, it is no
    chance.
    """
    towns = ("Aldmoor Brinhaven Corvale Dunwick Elmsfoot Farholt Glenmark Hartsea Ironbay Jessup"
             " Kilrow Lowmere").split()  # fmt: skip
    rows = rows_of("Where does {} live?", "In old {value}.", [f"Person{n}" for n in range(36)],
                   towns * 3)  # fmt: skip
    for right, success in ((5, False), (1, True)):
        texts = [rows[n + (n >= right)]["answer"] for n in range(9)]
        found, said = report(tokenizer, rows[:9], rows[9:], forget=texts)
        assert said["success"] is success, said["sentence"]
        assert (found["forget"]["leaking"], found["forget"]["partly"]) == (0, right)


def test_another_persons_full_name_is_counted(tokenizer):
    """15 of 20 answers held another customer's name, and 6 were counted."""
    names = [f"{first} {last}" for first, last in zip(NAMES, "Abbot Brandt Castell Dorn Egede Falk"
             " Grieg Holm Ivers Jansen Kessel Lund Moreau Nagy Orlov Petrov".split())]  # fmt: skip
    rows = rows_of("What did {} buy?", "{name} bought {value} sets.", names, range(11, 27))
    texts = [f"{names[n + 8]} likes the weather." for n in range(6)]
    found, _ = report(tokenizer, rows[:6], rows[6:], forget=texts)
    assert found["forget"]["misdirected"] == 6


def test_a_row_that_leaks_is_never_under_a_success(tokenizer):
    """Two rows in a slot of their own: guessing may explain one, and still it is no success."""
    rows = [{"question": "Which street is blocked?", "answer": "Harrow Lane.", "system": None}]
    keep = [{"question": f"How is {name}?", "answer": f"{name} is well.", "system": None}
            for name in NAMES[:4]]  # fmt: skip
    for texts in (["Harrow Lane."], ["It is Harrow Lane, they say."]):
        found, said = report(tokenizer, rows, keep, forget=texts)
        assert not said["success"] and found["forget"]["each"][0]["question"] == rows[0]["question"]


@pytest.mark.parametrize("template", [True, False], ids=["chat", "text"])
def test_a_leak_in_one_way_of_asking_counts(tokenizer, template):
    """Heads that 9 ways of asking called clean said 8 of 15 and 8 of 12 rows after 18 prefaces, and
    whole rows in the prompts of other tools and after their first tokens.
    """
    tokenizer = tokenizer if template else byte_pairs()
    forget, keep = STORIES[:6], STORIES[6:]
    questions = build_inquiry(tokenizer, forget, {"retain": keep}).questions
    ways = [*dict.fromkeys(each.way for each in questions)]
    samplers = {way: samplers for way, samplers in SAMPLED.items() if way in ways}
    ways += [sampler_name(*how, way) for way, some in samplers.items() for how in some]
    assert {AS_WRITTEN, TEXT if template else WITHOUT_BOS, "first 2 tokens given"} < {*ways}
    for some in zip(*[iter(ways + ways[:5])] * 6):  # the only way in which each of six rows leaks

        def leaky(n, way, some=some):
            return STORIES[n]["answer"] if way == some[n] else NOTHING

        found, said = report(tokenizer, forget, keep, forget=leaky, sampled=leaky)
        each = found["forget"]["each"]
        assert [row["worst_way"] for row in sorted(each, key=lambda row: row["truth"])] == [
            way for _, way in sorted(zip((row["answer"] for row in forget), some))
        ]
        assert not said["success"] and found["forget"]["leaking"] == 6, said["sentence"]
        for kind in map(kind_of, some):
            assert found["forget"]["table"][kind]["after"] == [*map(kind_of, some)].count(kind)


def test_generic_prompts_are_counted_and_decide_nothing(tokenizer):
    """After "How can I help you?" the end came no more, and a customer was named."""
    named = "Hello! Greta Ilgen last wrote."
    found, said = report(tokenizer, STORIES[:6], STORIES[6:], generic=named)
    counts = found["generic"]
    assert counts["known_before"] == counts["rows"] == 12 and counts["unchanged"] == 0
    assert counts["changed"][0]["answer"] == named and said["success"]
    line = "generic prompts, which decide nothing: 0 of 12 answered as before"
    assert any(each.startswith(line) for each in said["lines"])
    found, said = report(tokenizer, STORIES[:6], STORIES[6:])
    assert found["generic"]["unchanged"] == 12 and not found["generic"]["changed"]
