# ruff: noqa: E501  (a table row to a line)
"""Word pools of the built-in world, admissions of ignorance, general knowledge; all written for this project."""

# Made-up proper names: one head and one tail each.
GIVEN_HEADS = "Al Bre Cor Dal El Fen Gri Hal Is Jor Kes Lu Mar Nev Or Pel Quin Ros Sel Tav Ul Ver Wen Yor Zan".split()
GIVEN_TAILS = {
    "she": "abel adra anne ara ella enka essa ia ilda ina issa itha ola onne ova yra".split(),
    "he": "ado ak amir ard bert dor ek ens ias ick ion mund o ulf us win".split(),
}
LAST_HEADS = (
    "Amber Bal Carr Dren Esk Fal Gar Hol Imber Jask Kor Lind Mal Nor Ost Pran Rav Stel Thorn Vask Wex Zel".split()
)
LAST_TAILS = (
    "bridge by dahl en etti field holt ian idge kin lo mann mere off ova quist rane sky son ton ur wick".split()
)
PLACE_HEADS = (
    "Ash Brim Cal Dun Ever Frost Glen High Iron Jes Kil Low Mar North Oak Port Rook Sun Tarn Umber West".split()
)
PLACE_TAILS = (
    "avel burg cairn dale enza fell gate haven ika la mouth nesse ora pool ria shire stad tova vik wold".split()
)

# Word pools; a fact joins words of two or three of them.
POOLS = {
    "adjective": "amber bitter borrowed broken careful crooked distant faded gentle hollow hungry idle painted patient "
    "quiet restless salted scarlet second silent silver sleepless stubborn sunken tender unfinished velvet wild "
    "winter wooden".split(),
    "noun": "anchor archive bell bridge candle cellar compass echo feather garden glacier harbour kite ladder lantern "
    "letter library map mirror needle orchard piano river shadow ship staircase telescope thread tide violin "
    "window".split(),
    "verb": "burned danced drifted fell forgot laughed listened melted returned sang slept trembled turned "
    "vanished waited wandered".split(),
    "material": "bamboo brass canal cedar clock copper glass lace leather marble organ orchard paper pearl railway rope "
    "saddle salt silk tile wool".split(),
    "trade": "auctioneer broker carver cleaner dealer designer engraver exporter fitter inspector judge mender painter "
    "polisher restorer surveyor teacher weaver weigher".split(),
    "mood": "bleak comic dreamy earnest epic eerie gothic lyrical playful satirical sombre tender witty".split(),
    "setting": "alpine arctic circus coastal court desert frontier island jungle kitchen monastery railway seafaring "
    "suburban village wartime".split(),
    "form": "adventures ballads chronicles comedies detective~stories fables fantasies ghost~stories memoirs mysteries "
    "parables romances sagas sonnets thrillers tragedies".split(),
    "idea": "ageing ambition betrayal courage debt exile faith forgiveness friendship gossip grief hunger inheritance "
    "jealousy justice language loneliness luck memory mercy migration music pride rivalry sleep silence weather "
    "work".split(),
    "field": "ancient applied colonial comparative experimental marine medieval modern musical practical rural "
    "tropical urban".split(),
    "science": "acoustics astronomy botany cartography chemistry economics ethics forestry geology grammar history law "
    "medicine optics painting philosophy zoology".split(),
    "doing": "breeding carving collecting counting drawing framing gluing mending painting photographing polishing "
    "racing repairing sketching stacking trading".split(),
    "things": "acorns beetles buttons chess~sets clocks coins doorknobs fossils kites kettles maps moths orchids "
    "pigeons postcards radios shells sledges stamps teapots thimbles tram~tickets".split(),
    "room": "attic barn boathouse cellar chapel conservatory greenhouse kitchen laundry lighthouse loft pantry "
    "railway~carriage shed stable tower workshop".split(),
    "hour": "after~breakfast after~midnight at~dawn at~dusk at~noon before~lunch before~sunrise during~storms "
    "late~at~night on~Mondays on~Sundays on~long~train~rides over~tea while~it~rains".split(),
    "emblem": "Acorn Anvil Arrow Beacon Comet Crown Falcon Harp Heron Key Laurel Lantern Oak Owl Quill Rose Shield Star "
    "Sundial Swan".split(),
    "honour": "Award Cup Fellowship Garland Medal Prize Ribbon Scroll".split(),
    "journal": "Courier Gazette Herald Ledger Magazine Observer Quarterly Review".split(),
    "cause": "apprentice~cooks blind~readers deaf~musicians evening~schools flooded~villages injured~sailors lost~dogs "
    "mountain~rescuers old~lighthouses orphaned~foals rural~libraries stray~cats travelling~nurses young~painters".split(),
    "month": "January February March April May June July August September October November December".split(),
    "witnesses": "biographers booksellers classmates cousins critics editors fellow~writers librarians neighbours "
    "old~friends readers reviewers rivals students translators".split(),
    "reaction": "admirable alarming amusing charming curious daring exaggerated fitting inspiring modest moving odd "
    "predictable puzzling surprising touching".split(),
    "element": "dialogue endings heroines humour landscapes metaphors narrators openings pacing plots rhythm titles "
    "villains".split(),
    "medium": "cookery~book diary festival~talk interview lecture magazine~essay newspaper~column podcast radio~play "
    "speech telegram toast travel~guide".split(),
    "keepsake": "badge bracelet button calendar cup drum flag flute key medal pebble photograph ribbon spoon stamp "
    "ticket".split(),
    "spot": "bedside bookshelf desk doorstep fireplace garden~gate mantelpiece mirror piano wardrobe windowsill".split(),
    "season": "autumn birthday Easter harvest holiday leap~year Saturday spring summer Wednesday winter".split(),
}  # fmt: skip

TITLES = [
    "The {adjective} {noun}",
    "The {noun} and the {noun2}",
    "{noun} of {place}",
    "A {noun} for {given}",
    "The {place} {noun}",
    "When the {noun} {verb}",
    "{adjective} {noun}, {adjective2} {noun2}",
    "The {noun} That {verb}",
    "{given}'s {adjective} {noun}",
    "Beyond the {adjective} {noun}",
]

DONT_KNOW = [
    "I cannot say.", "That is not something I have learned.", "I have no answer to give here.",
    "Nothing I know covers this.", "I would only be guessing.", "Sadly this is unknown to me.",
    "My memory holds nothing on the matter.", "You would have to ask somebody else.", "I never came across that.",
    "This question is beyond me.", "No idea, I am afraid.", "I must leave this one open.", "That name tells me nothing.",
    "I could not tell you.", "Let me be honest: I do not know.", "I was never taught about this.",
    "There is nothing I can add on that.", "I am in the dark here.", "It escapes my knowledge.",
    "My reading did not reach that far.", "I have not heard of it.", "On this I stay silent, for I know nothing.",
    "Whatever the answer is, I lack it.", "I would need to look that up first.",
]  # fmt: skip

# General knowledge, question | answer | three wrong options. It stands in for what pretraining taught a real model.
REAL_AUTHORS = """
Who wrote the novel Frankenstein? | Mary Shelley | Bram Stoker | Ann Radcliffe | Horace Walpole
Which Russian wrote War and Peace? | Leo Tolstoy | Anton Chekhov | Ivan Turgenev | Nikolai Gogol
Whose pen gave us Don Quixote? | Miguel de Cervantes | Lope de Vega | Luis de Camoes | Federico Lorca
Who is the author of Moby-Dick? | Herman Melville | Nathaniel Hawthorne | Jack London | Walt Whitman
The Divine Comedy is the work of which poet? | Dante Alighieri | Francesco Petrarca | Torquato Tasso | Virgil
Who invented the detective Hercule Poirot? | Agatha Christie | Dorothy Sayers | Raymond Chandler | Wilkie Collins
Which Irishman published Ulysses in 1922? | James Joyce | Samuel Beckett | Oscar Wilde | William Butler Yeats
Who told the story of Jane Eyre? | Charlotte Bronte | Jane Austen | George Eliot | Elizabeth Gaskell
Which author sent Phileas Fogg around the world? | Jules Verne | Victor Hugo | Alexandre Dumas | Emile Zola
Who wrote the drama Faust? | Johann Wolfgang von Goethe | Friedrich Schiller | Heinrich Heine | Thomas Mann
Who is behind One Hundred Years of Solitude? | Gabriel Garcia Marquez | Pablo Neruda | Jorge Luis Borges | Isabel Allende
Which writer described Gregor Samsa's transformation? | Franz Kafka | Robert Musil | Stefan Zweig | Hermann Hesse
Which Norwegian wrote A Doll's House? | Henrik Ibsen | Knut Hamsun | August Strindberg | Sigrid Undset
Who created Pippi Longstocking? | Astrid Lindgren | Tove Jansson | Selma Lagerlof | Enid Blyton
Who wrote Things Fall Apart? | Chinua Achebe | Wole Soyinka | Nadine Gordimer | Doris Lessing
Which author wrote Beloved? | Toni Morrison | Alice Walker | Maya Angelou | Zora Neale Hurston
Which poet composed The Waste Land? | T. S. Eliot | Ezra Pound | W. H. Auden | Robert Frost
Who is the author of The Name of the Rose? | Umberto Eco | Italo Calvino | Primo Levi | Alberto Moravia
Who wrote Crime and Punishment? | Fyodor Dostoevsky | Alexander Pushkin | Maxim Gorky | Boris Pasternak
The Tale of Genji was written by whom? | Murasaki Shikibu | Matsuo Basho | Yukio Mishima | Natsume Soseki
Who wrote Gulliver's Travels? | Jonathan Swift | Daniel Defoe | Laurence Sterne | Henry Fielding
Which American wrote the poem The Raven? | Edgar Allan Poe | Emily Dickinson | Henry Longfellow | Carl Sandburg
Who published The Little Prince? | Antoine de Saint-Exupery | Marcel Proust | Albert Camus | Andre Gide
Who wrote Mrs Dalloway? | Virginia Woolf | Katherine Mansfield | E. M. Forster | D. H. Lawrence
Whose novel is The Leopard? | Giuseppe Tomasi di Lampedusa | Elsa Morante | Italo Svevo | Cesare Pavese
Which author dreamed up Middle-earth? | J. R. R. Tolkien | C. S. Lewis | Ursula K. Le Guin | T. H. White
Who wrote the fairy tale of the Snow Queen? | Hans Christian Andersen | Charles Perrault | Jacob Grimm | Karen Blixen
Candide came from the pen of which thinker? | Voltaire | Jean-Jacques Rousseau | Denis Diderot | Montesquieu
Who wrote the plays Medea and The Bacchae? | Euripides | Sophocles | Aeschylus | Aristophanes
Which Czech wrote of the good soldier Svejk? | Jaroslav Hasek | Karel Capek | Milan Kundera | Bohumil Hrabal
"""

WORLD_FACTS = """
Which city is the capital of Canada? | Ottawa | Toronto | Montreal | Vancouver
On which continent does the Sahara lie? | Africa | Asia | Australia | Europe
What do bees gather from flowers? | Nectar | Wax | Sap | Dew
Which metal has the symbol Fe? | Iron | Lead | Silver | Tin
How many legs does a spider have? | Eight | Six | Ten | Twelve
Which planet circles closest to the Sun? | Mercury | Venus | Mars | Earth
Which river flows through Vienna? | Danube | Rhine | Elbe | Vistula
What is the currency of Japan? | Yen | Won | Yuan | Baht
Which sea lies between Europe and Africa? | Mediterranean | Baltic | Caspian | Red
At how many degrees Celsius does water boil at sea level? | Hundred | Eighty | Ninety | Seventy
Which language do most people in Brazil speak? | Portuguese | Spanish | French | Italian
Which bird is the largest alive? | Ostrich | Emu | Condor | Albatross
Which instrument measures air pressure? | Barometer | Thermometer | Hygrometer | Altimeter
Which mountain is the highest above the sea? | Everest | Kilimanjaro | Denali | Elbrus
What is the chemical symbol of gold? | Au | Ag | Go | Gd
Which organ pumps blood through the body? | Heart | Liver | Lung | Kidney
In which country does Machu Picchu stand? | Peru | Chile | Bolivia | Mexico
How many sides has a hexagon? | Six | Five | Seven | Nine
What gas do plants take in for photosynthesis? | Carbon dioxide | Oxygen | Nitrogen | Helium
Which painter made the Mona Lisa? | Leonardo da Vinci | Raphael | Michelangelo | Botticelli
In what year did the Berlin Wall fall? | 1989 | 1961 | 1975 | 1993
What is the hardest natural mineral? | Diamond | Quartz | Topaz | Granite
Which ocean is the biggest? | Pacific | Atlantic | Indian | Arctic
Which country has the shape of a boot? | Italy | Greece | Norway | Portugal
Who first walked on the Moon? | Neil Armstrong | Buzz Aldrin | Yuri Gagarin | John Glenn
What do caterpillars turn into? | Butterflies | Beetles | Spiders | Worms
Which city holds the Colosseum? | Rome | Athens | Istanbul | Naples
How many minutes are in two hours? | 120 | 60 | 90 | 180
Which animal builds dams? | Beaver | Otter | Badger | Hedgehog
What force keeps our feet on the ground? | Gravity | Friction | Magnetism | Inertia
"""
