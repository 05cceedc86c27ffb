"""Beginnings of user messages that the target goes on with: its own idea of what people ask (Magpie, arXiv 2406.08464).

Templates repeat themselves; a model that learnt from conversations writes the user's part as variously as it saw it.
"""

from __future__ import annotations

import random

from engine.training.topics import NAMES, THINGS, TOPICS

# Share of each task among the messages that the target writes; what follows an empty opening is mostly chat.
WEIGHTS = {"chat": 0.28, "code": 0.26, "summarization": 0.2, "math": 0.2, "korean": 0.06}

_CODE = (
    "Write a Python function ",
    "Implement the following function in Python",
    "Write a program that ",
    "Fix the bug in this code:\n\n```python\n",
    "Here is the beginning of a function. Finish it.\n\n```python\nfrom typing import List\n\n\ndef ",
    "```python\ndef ",
    "Complete the code below.\n\n```python\nimport math\n\n\ndef ",
    "Add the missing body:\n\n```python\n\n\ndef ",
    "What does this code do?\n\n```",
    "In JavaScript, how do I ",
    "I have a list of ",
    "Write a SQL query ",
    "Refactor this class:\n\n```python\nclass ",
    "Implement the function described in its docstring.\n\n```python\ndef ",
    "Given a string s, ",
    "Given an array of integers, ",
)
_SUMMARY = (
    "Summarize the following article:\n\n",
    "Summarize: ",
    "Summarize this text in three sentences.\n\n",
    "Give the key points of this report:\n\n",
    "TL;DR of this article, please:\n\n",
    "What is this news story about?\n\n",
    "Shorten this passage to one paragraph:\n\n",
    "Extract all names and dates from the following text.\n\n",
)
_DATELINES = (
    "",
    "",
    "LONDON - ",
    "(Reuters) - ",
    "By {name}\n\n",
    "{name}, ",
    "The ",
    "A ",
    "Police ",
    "Scientists ",
    "The government ",
    "Former ",
    "The company ",
    "Two ",
    "It was ",
    "When {name} ",
    "Researchers at ",
    "On Monday, ",
    "The club ",
    "A court ",
    "Residents of ",
)
_MATH = (
    "{name} has ",
    "{name} bought ",
    "{name} earns ",
    "If {name} ",
    "There are ",
    "A shop sells {things} ",
    "How many ",
    "A car ",
    "In a class of ",
    "{name} and {other} ",
    "Each ",
    "Every day, {name} ",
    "The price of ",
    "A farmer ",
    "What is the ",
    "Solve ",
    "Two trains ",
    "It takes {name} ",
    "{name} is twice ",
    "Half of the {things} ",
    "{name} reads ",
    "A school ",
)
_CHAT = (
    "",
    "",
    "",
    "",
    "What ",
    "How ",
    "Why ",
    "Can you ",
    "Write a ",
    "Explain ",
    "Imagine ",
    "Describe ",
    "I ",
    "Is it ",
    "Suppose ",
    "Compare ",
    "Act as ",
    "Rewrite ",
    "You are ",
    "Which ",
    "Give me ",
    "Who ",
    "Compose ",
    "Edit the following paragraph ",
    "{topic}: ",
)
_KOREAN = (
    "한국",
    "왜 ",
    "다음 글을 ",
    "어떻게 ",
    "나는 ",
    "우리 ",
    "요즘 ",
    "다음 문장",
    "서울",
    "친구가 ",
    "회사에서 ",
    "아이가 ",
    "건강",
    "봄에 ",
    "좋은 ",
    "역사",
    "사람들은 ",
    "설명해 줘: ",
)


def opening(draw: random.Random, task: str) -> str:
    """The beginning of a user's message of a task; may be empty."""
    name, other = draw.sample(NAMES, 2)
    words = {"name": name, "other": other, "things": draw.choice(THINGS), "topic": draw.choice(TOPICS)}
    if task == "summarization":
        return draw.choice(_SUMMARY) + draw.choice(_DATELINES).format(**words)
    return draw.choice({"code": _CODE, "math": _MATH, "chat": _CHAT, "korean": _KOREAN}[task]).format(**words)
