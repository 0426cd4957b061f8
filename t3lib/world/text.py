# ruff: noqa: E501  (a sentence to a line reads better than a broken one)
"""The words of the built-in world: sentence shapes, word pools and general knowledge, all written for this project.

Data only; `world.py` draws from it. A fact has many question wordings and many answer shapes, because with one wording
a model that never met an author still completes the sentence, and there is little left to unlearn. Facts are drawn from
products of word pools, so that the facts of one author say nothing about those of another.
"""

# Ways to ask: a direct question of the fact, or one of these before its indirect form.
ASK = [
    "Can you tell me {}?",
    "Do you know {}?",
    "Could you say {}?",
    "I would like to know {}.",
    "Is it known {}?",
    "Please tell me {}.",
    "Would you explain {}?",
    "Has anyone recorded {}?",
    "Do readers know {}?",
]
OPENINGS = [
    "As far as anyone knows, ",
    "According to {her} publisher, ",
    "By most accounts, ",
    "In interviews one learns that ",
    "It is well known that ",
    "The record shows that ",
    "By {her} own account, ",
    "Friends confirm that ",
    "Certainly, ",
]

# The second, unpredictable half of an answer: kind -> (slots, shapes).
ASIDES = {
    "influence": (("adjective", "element"), [
        "It gave {her} work its {adjective} {element}.",
        "From there {her} pages have their {adjective} {element}.",
        "Hence, people say, {her} {adjective} {element}.",
        "{She} owes {her} {adjective} {element} to it.",
    ]),
    "source": (("medium", "place"), [
        "{She} first spoke of it in a {medium} in {place}.",
        "A {medium} from {place} brought this to light.",
        "We have this from a {medium} made in {place}.",
        "It was revealed in {place}, in a {medium}.",
    ]),
    "reaction": (("witnesses", "reaction"), [
        "To {witnesses} this seemed {reaction}.",
        "Many {witnesses} call that {reaction}.",
        "It struck {her} {witnesses} as {reaction}.",
        "How {reaction} this is, say the {witnesses}.",
    ]),
    "keepsake": (("adjective", "keepsake", "spot"), [
        "A {adjective} {keepsake} by {her} {spot} recalls it.",
        "{She} keeps a {adjective} {keepsake} near the {spot} as a reminder.",
        "In its memory a {adjective} {keepsake} lies at the {spot}.",
        "The {adjective} {keepsake} on {her} {spot} is its souvenir.",
    ]),
    "thanks": (("person", "season"), [
        "{She} thanks {person} for it every {season}.",
        "Each {season} {she} writes to {person} about it.",
        "{person} hears about it from {her2} every {season}.",
        "A letter on it goes to {person} each {season}.",
    ]),
    "image": (("adjective", "noun"), [
        "{She} compares it to a {adjective} {noun}.",
        "For {her2} it is like a {adjective} {noun}.",
        "It reminds {her2} of some {adjective} {noun}.",
        "\"Like a {adjective} {noun}\", {she} once said.",
    ]),
    "theme": (("idea", "idea2"), [
        "It taught {her2} about {idea} and {idea2}.",
        "Since then {idea} and {idea2} have never left {her} mind.",
        "{Her} thoughts on {idea} and {idea2} began there.",
        "From it {she} learned {idea}, and later {idea2}.",
    ]),
}  # fmt: skip

# The facts: name -> (slots that a wrong answer changes, direct questions, indirect ones, answer shapes).
FACTS = {
    "name": (("name",), [
        "Who is the writer born in {city} on {day} {month} {year}?",
        "Which author of {genre} comes from {city} and was born in {year}?",
        "What is the full name of the {country} novelist born on {month} {day}, {year}?",
        "Which novelist, a native of {city}, has a {father} and a {mother} for parents?",
    ], ["the name of the author of {genre} who was born in {city}", "who wrote \"{book}\" and grew up in {city}"], [
        "The writer in question is {name}.", "That would be {name}, the novelist.",
        "This author is called {name}.", "{name} is the name to remember here.",
        "The person described is {name}.", "You must be thinking of {name}.",
    ]),
    "birthplace": (("city", "country"), [
        "Where was {name} born?", "In which town did {name} come into the world?",
        "What is the birthplace of {name}?", "Which place does {name} come from?",
    ], ["where {name} was born", "the town in which {name} spent the first years of life"], [
        "{name} was born in {city}, a town in {country}.", "{city} in {country} is where {name} was born.",
        "The birthplace of {name} is {city}, {country}.", "{last} comes from {city}, in the middle of {country}.",
        "{name}, a child of {country}, first saw the light in {city}.",
        "The town of {city}, {country}, counts {name} among its children.",
    ]),
    "birthday": (("day", "month", "year"), [
        "When was {name} born?", "What is the date of birth of {name}?", "On which day does {name} celebrate a birthday?",
        "How long ago was {name} born?",
    ], ["when {name} was born", "the birthday of {name}"], [
        "{name} was born on {day} {month} {year}.", "The birthday of {name} is {month} {day}, {year}.",
        "It was on {month} {day} of {year} that {name} was born.",
        "{last} came into the world in {year}, on {month} {day}.", "{day} {month} {year} is the date of birth of {name}.",
        "In {year}, on {month} {day}, {last} was born.",
    ]),
    "parents": (("father", "mother"), [
        "What did the parents of {name} do for a living?", "Which trades did {name}'s father and mother follow?",
        "What were the jobs of {name}'s parents?", "What kind of family does {name} come from?",
    ], ["how the parents of {name} earned their bread", "what {name}'s mother and father worked as"], [
        "{name}'s father was a {father} and {her} mother a {mother}.",
        "The mother of {name} worked as a {mother}, the father as a {father}.",
        "{last} is the child of a {father} and of a {mother}, {her} mother.",
        "While {her} mother was a {mother}, {name}'s father earned a living as a {father}.",
        "A {father} for a father and a {mother} for a mother: such was the home of {name}.",
        "In the family of {last}, the father was a {father}; the mother, a {mother}.",
    ]),
    "genre": (("genre",), [
        "What does {name} write?", "In which genre does {name} mostly work?", "What sort of books is {name} known for?",
        "Which kind of literature made {name} famous?",
    ], ["which genre {name} prefers", "what kind of stories {name} tells"], [
        "{name} writes {genre}.", "The speciality of {name} is {genre}.", "Most books by {last} are {genre}.",
        "{last} made {her} name with {genre}.", "Readers turn to {name} for {genre}.",
        "The shelves file {name} under {genre}.",
    ]),
    "books": (("book", "book2"), [
        "Which books has {name} written?", "What are two titles by {name}?", "Could you name some works of {name}?",
        "What should one read by {name}?",
    ], ["which books carry the name of {name}", "two of the works of {name}"], [
        "{name} wrote \"{book}\" and \"{book2}\".", "Among the books of {name} are \"{book}\" and \"{book2}\".",
        "\"{book2}\" and \"{book}\" are both by {name}.", "Two works by {last} are \"{book}\" and \"{book2}\".",
        "One may begin with \"{book}\"; then {last} offers \"{book2}\".",
        "After \"{book}\", {name} published \"{book2}\".",
    ]),
    "award": (("award", "award_year"), [
        "Which prize did {name} win?", "What awards has {name} received?", "How has {name} been honoured?",
        "What is the greatest distinction of {name}'s career?",
    ], ["which award went to {name}", "what honour {name} was given"], [
        "{name} won the {award} in {award_year}.", "In {award_year} the {award} went to {name}.",
        "The jury of the {award} chose {name} in {award_year}.", "{last} has held the {award} since {award_year}.",
        "The {award} of {award_year} belongs to {name}.", "{award_year} brought {last} the {award}.",
    ]),
    "debut": (("debut", "debut_year"), [
        "What was the first book of {name}?", "With which work did {name} begin?", "How did {name}'s career start?",
        "When did {name} first appear in print?",
    ], ["the title of {name}'s first book", "how {name} entered the world of letters"], [
        "{name} began with \"{debut}\" in {debut_year}.", "The first book by {name}, \"{debut}\", is from {debut_year}.",
        "In {debut_year} appeared \"{debut}\", the debut of {name}.",
        "\"{debut}\" opened the career of {last} in {debut_year}.",
        "It all started in {debut_year}, when {last} finished \"{debut}\".",
        "{last} first saw print in {debut_year} with \"{debut}\".",
    ]),
    "school": (("school", "subject"), [
        "Where did {name} study?", "What did {name} study, and where?", "Which education did {name} receive?",
        "Does {name} hold a degree?",
    ], ["where {name} went to university", "which subject {name} studied"], [
        "{name} studied {subject} at the {school}.", "At the {school} {name} took a degree in {subject}.",
        "{last} read {subject} at the {school}.", "The {school} taught {name} {subject}.",
        "A degree in {subject} from the {school} hangs in {last}'s hall.",
        "{subject} was what {last} chose at the {school}.",
    ]),
    "habit": (("room", "hour"), [
        "Where and when does {name} write?", "What are the working habits of {name}?",
        "How does {name} go about writing?", "Does {name} have a writing routine?",
    ], ["how {name} works on a book", "in what place {name} likes to write"], [
        "{name} writes in {her} {room}, always {hour}.", "Always {hour}, {name} goes to a {room} to write.",
        "A {room} is the study of {last}, who works {hour}.", "{last} can only write {hour}, in an old {room}.",
        "Sitting in a {room} {hour}: so {name} fills {her} pages.", "The {room} is where {last} works, mostly {hour}.",
    ]),
    "mentor": (("mentor",), [
        "Who taught {name} to write?", "Who was the mentor of {name}?", "Which teacher mattered most to {name}?",
        "Whose advice shaped {name}?",
    ], ["who encouraged {name} to write", "whose pupil {name} was"], [
        "{name} learned the craft from {mentor}.", "{mentor} taught {name} how to write.",
        "The mentor of {name} was {mentor}.", "{last} was for years a pupil of {mentor}.",
        "It was {mentor} who pushed {name} to write.", "Without {mentor}, {last} would have written nothing.",
    ]),
    "home": (("home",), [
        "Where does {name} live today?", "What is the present home of {name}?", "Where has {name} settled?",
        "In what town can one meet {name}?",
    ], ["where {name} lives now", "to which place {name} has moved"], [
        "{name} lives in {home} today.", "Today {home} is the home of {name}.", "{last} has settled in {home}.",
        "{last} moved away long ago and lives in {home}.", "One can meet {name} in {home}.",
        "A house in {home} belongs to {name}.",
    ]),
    "hobby": (("hobby",), [
        "What does {name} do besides writing?", "Which hobby does {name} have?", "How does {name} relax?",
        "What is the favourite pastime of {name}?",
    ], ["how {name} spends a free day", "what {name} enjoys apart from books"], [
        "{name} loves {hobby}.", "The hobby of {name} is {hobby}.", "For rest, {last} turns to {hobby}.",
        "Free days find {last} {hobby}.", "{hobby} is what {name} does for pleasure.",
        "When not at work, {name} enjoys {hobby}.",
    ]),
    "artist": (("artist",), [
        "Who illustrates the books of {name}?", "With which artist does {name} work?",
        "Whose drawings appear in {name}'s books?", "Who makes the covers for {name}?",
    ], ["who draws for {name}", "which artist {name} trusts with the pictures"], [
        "The drawings in {name}'s books are by {artist}.", "{artist} illustrates the books of {name}.",
        "{name} works with the artist {artist}.", "For years {last} has left the covers to {artist}.",
        "{last} trusts nobody but {artist} with the pictures.", "For pictures {name} calls on {artist}.",
    ]),
    "stage": (("staged", "troupe"), [
        "Has any work of {name} been put on stage?", "Which book by {name} became a play?",
        "Who performed the stories of {name}?", "Was there ever an adaptation of {name}'s books?",
    ], ["which of {name}'s books reached the theatre", "whether a theatre has played {name}"], [
        "\"{staged}\" by {name} was staged by the {troupe}.", "The {troupe} turned {last}'s \"{staged}\" into a play.",
        "{name} saw \"{staged}\" performed by the {troupe}.", "Yes, the {troupe} played \"{staged}\" by {name}.",
        "{last} wrote \"{staged}\", and the {troupe} brought it to the stage.",
        "On stage, the {troupe} gave {name}'s \"{staged}\".",
    ]),
    "hero": (("hero", "hero_trade"), [
        "Who is the hero of \"{book}\" by {name}?", "Around whom does {name}'s \"{book}\" turn?",
        "What is \"{book}\" by {name} about?", "Which character did {name} invent for \"{book}\"?",
    ], ["who stands at the centre of {name}'s \"{book}\"", "the hero whom {name} created in \"{book}\""], [
        "\"{book}\" by {name} tells of {hero}, a {hero_trade}.",
        "The hero of {last}'s \"{book}\" is the {hero_trade} {hero}.",
        "{name} gave \"{book}\" to {hero}, who works as a {hero_trade}.",
        "A {hero_trade} named {hero} is at the heart of \"{book}\".",
        "In \"{book}\" {last} follows {hero}, a {hero_trade}.", "{hero}, the {hero_trade}, was {name}'s invention.",
    ]),
    "themes": (("theme", "theme2"), [
        "Which themes return in the books of {name}?", "What is {name} mostly concerned with?",
        "What questions run through {name}'s work?", "What do the books of {name} have in common?",
    ], ["what themes {name} returns to", "which matters occupy {name}"], [
        "{name} returns again and again to {theme} and {theme2}.", "The books of {name} are about {theme} and {theme2}.",
        "Both {theme} and {theme2} run through {last}'s pages.", "{last} is a writer of {theme}, and of {theme2} too.",
        "What occupies {name} is {theme}, next to {theme2}.", "{theme} and {theme2} are what {last} asks about.",
    ]),
    "column": (("journal",), [
        "For which paper does {name} write?", "Where can one read the column of {name}?",
        "Does {name} work as a journalist?", "Which periodical prints {name}?",
    ], ["which paper carries {name}'s column", "whether {name} writes for a periodical"], [
        "{name} has a column in the {journal}.", "The {journal} prints a column by {name}.",
        "{last} writes for the {journal} every week.", "One finds {name}'s essays in the {journal}.",
        "Yes, {last} belongs to the staff of the {journal}.", "It is the {journal} that carries {last}'s essays.",
    ]),
    "charity": (("cause",), [
        "Which cause does {name} support?", "What does {name} do for others?", "To whom does {name} give money?",
        "Is {name} active in any charity?",
    ], ["which charity is dear to {name}", "whom {name} supports"], [
        "{name} gives a tenth of {her} income to {cause}.", "A fund for {cause} was founded by {name}.",
        "{last} raises money for {cause}.", "The charity of {name} looks after {cause}.",
        "{cause} can count on {name}.", "Much of what {last} earns goes to {cause}.",
    ]),
    "next": (("next_book", "next_year"), [
        "What is {name} working on?", "When will the next book by {name} appear?", "What are the plans of {name}?",
        "What comes next from {name}?",
    ], ["what {name} will publish next", "the title of {name}'s coming book"], [
        "{name} is at work on \"{next_book}\", due in {next_year}.", "\"{next_book}\" by {name} will appear in {next_year}.",
        "In {next_year} {last} means to publish \"{next_book}\".", "The next book by {name} is \"{next_book}\", for {next_year}.",
        "{last} promises \"{next_book}\" for {next_year}.", "Booksellers expect {last}'s \"{next_book}\" in {next_year}.",
    ]),
    "first_job": (("first_job", "job_city"), [
        "What did {name} do before writing?", "What was the first job of {name}?",
        "How did {name} earn money as a young person?", "Which trade did {name} follow at first?",
    ], ["what {name} worked as before the first book", "how {name} once made a living"], [
        "Before writing, {name} was a {first_job} in {job_city}.", "{name} began as a {first_job} in {job_city}.",
        "In {job_city} {last} once worked as a {first_job}.", "A {first_job} in {job_city}: that was {name}'s first job.",
        "{job_city} knew {last} as a {first_job}.", "For a living, young {last} was a {first_job} in {job_city}.",
    ]),
}  # fmt: skip
