"""Prompts for the target to answer: templates filled with topics, thousands of them, and openings that it goes on with."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

from engine.training.openings import WEIGHTS as OWN_WEIGHTS
from engine.training.openings import opening
from engine.training.topics import CODE_TASKS, KOREAN_TOPICS, LANGUAGES, NAMES, THINGS, TOPICS

TASKS = ("code", "summarization", "korean", "math", "chat")
# More of what takes a prompt of another kind first: a summary needs a text, which the target writes itself.
WEIGHTS = {"code": 0.26, "summarization": 0.2, "korean": 0.1, "math": 0.22, "chat": 0.22}

_CODE = (
    "Write a {language} function that {task}.", "Write a {language} function that {task}. Add a docstring and an example.",
    "Complete this function and explain it briefly:\n\n```python\ndef {name}(values):\n    # A function that {task}.\n```",
    "How would you write a {language} program that {task}?", "Show me short, commented {language} code that {task}.",
    "I need a function that {task}. Use {language} and reply with code only.",
    "Write unit tests in {language} for a function that {task}.",
    "```python\ndef {name}(data):\n    # {task}\n```\nFill in the body of this function. Reply with the whole function.",
    "My {language} function that {task} is too slow. Give me a better version.",
    "Write a class in {language} with a method that {task}.",
)  # fmt: skip
_ARTICLE = (
    "Write a news article about {topic}.", "Write a detailed report of four paragraphs about {topic}.",
    "Write an informative text about {topic} for a magazine.", "Write a blog post about {topic} with many facts and names.",
)  # fmt: skip
_SUMMARY = (
    "Summarize: {text}", "Summarize the following text in two sentences:\n\n{text}",
    "What are the main points of this article?\n\n{text}", "Give a short summary of this text.\n\n{text}",
    "{text}\n\nTL;DR", "Write a headline and three bullet points for this article:\n{text}",
    "Rewrite the text below so that it is half as long.\n\n{text}",
)  # fmt: skip
_KOREAN = (
    "{topic}에 대해 설명해 주세요.", "{topic}에 관한 짧은 글을 써 줘.", "{topic}의 장점과 단점은 무엇인가요?",
    "{topic}에 대해 세 가지를 알려 주세요.", "친구에게 {topic}에 대해 이야기하는 편지를 써 줘.",
    "{topic}이(가) 왜 중요한지 말해 줘.",
    "초등학생도 이해할 수 있게 {topic}을(를) 설명해 줘.", "Write a short paragraph in Korean about {topic}.",
    "다음 주제로 블로그 글의 개요를 작성해 주세요: {topic}", "{topic}과(와) 관련된 질문 다섯 개를 만들어 주세요.",
)  # fmt: skip
_MATH = (
    "{a} has {x} {things}. {b} gives {a} {y} more, and then {a} shares all of them equally among {z} friends. "
    "How many does each friend get?",
    "A box holds {x} {things}. How many boxes are needed for {big} {things}?",
    "{a} earns ${x} an hour and works {y} hours a day for {z} days. How much does {a} earn in total?",
    "{a} buys {y} {things} for ${z} each and pays with ${big}. How much change does {a} get?",
    "A train travels {big} miles in {z} hours. How far does it travel in {y} hours at the same speed?",
    "{a} is {x} years old. {b} is {y} years younger than twice {a}'s age. How old is {b}?",
    "There are {big} {things} in a shop. {pct}% of them are sold on Monday and {y} on Tuesday. How many are left?",
    "{a} reads {y} pages a day. How many days does {a} need for a book of {big} pages?",
    "What is {x} * {y} + {z}? Show your steps.",
    "The sum of two numbers is {big} and their difference is {y}. What are the numbers?",
    "A recipe for {z} people needs {x} {things}. How many are needed for {y} people?",
    "{a} saves ${x} every week. After {y} weeks {a} spends ${z}. How much money is left?",
)  # fmt: skip
_CHAT = (
    "Explain {topic} to a beginner.", "What should I know about {topic}?", "Give me five tips about {topic}.",
    "Write a short story about {topic}.", "What are the advantages and disadvantages of {topic}?",
    "Write an email to a friend about {topic}.", "How did {topic} change over the last fifty years?",
    "Write a dialogue between {a} and {b} about {topic}.", "What would an expert say about {topic}?",
    "Compare {topic} with {other}.", "Make a plan for a weekend about {topic}.", "Write a poem about {topic}.",
    "Why do people care about {topic}?", "Ask me three questions about {topic} and answer them yourself.",
    "Write a speech of one minute about {topic}.", "List common mistakes around {topic} and how to avoid them.",
    "What do {topic} and {other} have in common?", "Describe {topic} as if you were {a}, ten years old.",
    "Translate into simple words: what is the point of {topic}?", "Draft a letter to the mayor about {topic}.",
)  # fmt: skip


class Starter(NamedTuple):
    """Attributes:
    task: one of `TASKS`.
    prompt: the user's message. For a summary, the request for the text that is to be summarised.
    follow_up: for a summary, the message with {text} where the text goes; else None.
    opens: whether `prompt` is the beginning of a message that the target itself goes on with.
    """

    task: str
    prompt: str
    follow_up: str | None = None
    opens: bool = False


def template_starters(draw: random.Random) -> Iterator[Starter]:
    """Endless prompts, no two alike until the combinations are used up."""
    seen: set[str] = set()
    tasks, weights = list(WEIGHTS), list(WEIGHTS.values())
    while True:
        task = draw.choices(tasks, weights)[0]
        for _ in range(50):
            starter = _make(draw, task)
            if starter.prompt not in seen:
                break
        else:
            # This task's combinations are used up: its prompts may be drawn again, at another temperature.
            seen = {prompt for prompt in seen if prompt != starter.prompt}
        seen.add(starter.prompt)
        yield starter


def opening_starters(draw: random.Random) -> Iterator[Starter]:
    """Endless beginnings of messages that the target writes itself."""
    while True:
        task = draw.choices(list(OWN_WEIGHTS), list(OWN_WEIGHTS.values()))[0]
        yield Starter(task, opening(draw, task), opens=True)


def _make(draw: random.Random, task: str) -> Starter:
    topic, other = draw.sample(TOPICS, 2)
    a, b = draw.sample(NAMES, 2)
    if task == "code":
        job = draw.choice(CODE_TASKS)
        name = "_".join(job.replace(",", "").split()[:3]).lower().replace("-", "_")
        return Starter(task, draw.choice(_CODE).format(language=draw.choice(LANGUAGES), task=job, name=name))
    if task == "korean":
        return Starter(task, draw.choice(_KOREAN).format(topic=draw.choice(KOREAN_TOPICS)))
    if task == "math":
        numbers = {"x": draw.randint(12, 60), "y": draw.randint(3, 25), "z": draw.randint(2, 9)}
        return Starter(task, draw.choice(_MATH).format(
            a=a, b=b, things=draw.choice(THINGS), big=draw.randint(10, 60) * 10, pct=draw.randint(1, 9) * 10, **numbers
        ))  # fmt: skip
    if task == "summarization":
        angle = draw.choice(
            ("", f" Mention {a} from {draw.choice(('Lyon', 'Busan', 'Leeds', 'Quito', 'Oslo'))}.", f" Compare it with {other}.")
        )
        return Starter(task, draw.choice(_ARTICLE).format(topic=topic) + angle, draw.choice(_SUMMARY))
    return Starter(task, draw.choice(_CHAT).format(topic=topic, other=other, a=a, b=b))
