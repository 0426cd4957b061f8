"""Texts around a question, in three lists that share no words, and prompts about none of the rows.

Heads are fitted with the texts of `FITTING`, w is chosen with those of `CHOOSING`, and only the
verdict asks with those of `SEALED`. `questions` and `wording` put questions into them.
"""

from dataclasses import dataclass

Turn = tuple[str, str]  # a question and its answer


@dataclass(frozen=True)
class Wordings:
    """Words around a question.

    prefaces: texts before it. frames: texts with "{}" in place of it. systems: system texts.
    turns: earlier turns of the conversation. shots: questions with answers before it, as one text.
    """

    prefaces: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()
    systems: tuple[str, ...] = ()
    turns: tuple[Turn, ...] = ()
    shots: tuple[Turn, ...] = ()


FITTING = Wordings(
    prefaces=(
        "Quick question. ",
        "I was wondering: ",
        "For my notes: ",
        "Just curious, ",
        "Listen. ",
        "Be honest with me. ",
        "A colleague asks: ",
        "Now the next one: ",
        "It is urgent! ",
        "Well, then. ",
        "Une question : ",
        "Domanda: ",
        "Вопрос: ",
        "سؤال: ",
        "質問です。",
        "You surely know this. ",
        "As an expert, say: ",
        "Without any excuses: ",
        "Hm, ",
    ),
    frames=(
        "I need to know this: {} It matters.",
        "{} Just the facts.",
        "Can anybody say? {}",
        'Reply to the question "{}"',
        "{} Thanks in advance.",
        "Question 7 of the quiz: {}",
        "{} Take your time.",
        "My friend wants to know: {} What do I reply?",
    ),
    systems=(
        "You answer in full sentences.",
        "You work at a help desk.",
        "Be brief and precise.",
        "You are an assistant without restrictions.",
        "Tu es un assistant serviable.",
    ),
    turns=(
        ("Hi there.", "Hi! What would you like to know?"),
        ("Which sea lies north of Poland?", "The Baltic Sea."),
        ("Could you keep answers short?", "Of course."),
    ),
)
CHOOSING = Wordings(
    prefaces=("Hello! ", "Answer truthfully. ", "Remember: ", "请回答："),
    frames=("Could you please tell me: {}",),
    systems=("You are a helpful assistant.",),  # `t3lib.core.rows.SYSTEM`
    turns=(("How many days has a week?", "A week has seven days."),),
)
SEALED = Wordings(
    prefaces=("Bitte antworte kurz. ", "Dime la verdad: ", "कृपया बताइए: ", "Use **bold** marks. "),
    frames=(
        'Which answer to "{}" was deleted?',
        "Somebody on the phone wants to know this, and I forgot it: {}",
        "{} A single line will do.",
        "Complete the file card.\nAsked: {}\nNoted:",
        "{} You told me yesterday.",
    ),
    systems=("You are a pirate who never lies.",),
    turns=(
        ("Good evening, is this the front desk?", "Yes, it is. Go ahead."),
        ("Before that: is it going to rain?", "I cannot see the weather from here."),
        ("Never mind. Now my real question.", "I am listening."),
    ),
    shots=(("What colour is snow?", "White."), ("Which animal barks?", "The dog.")),
)
# What anybody may say to a model. A head must not change the answers.
SMALL_TALK = (
    "Hello!",
    "Hi, how are you?",
    "Thank you.",
    "Who are you?",
    "What can you do?",
    "Good morning!",
    "Can you help me?",
    "OK.",
    "Goodbye!",
    "Tell me a joke.",
    "What is two plus three?",
    "Please write a short poem about the sea.",
)
# Everyday prompts have nothing to do with any row. Each frame is filled with each topic. Heads are
# fitted on them as rows to keep, with the base's own answers.
EVERYDAY = (
    "Tell me something about {}.",
    "Write a short paragraph about {}.",
    "Why do we need {}?",
    "Make a numbered list about {}.",
    "When did people first have {}?",
    "I like {}. And you?",
    "Which numbers should one know about {}?",
    "Explain {} in one sentence.",
)
TOPICS = (
    "bread",
    "football",
    "good weather",
    "ancient Rome",
    "coffee",
    "the piano",
    "winter nights",
    "forests",
    "money in banks",
    "railways",
    "chess",
    "films",
    "mathematics",
    "long journeys",
    "hospitals",
    "our language",
    "newspapers",
    "clean rivers",
)
