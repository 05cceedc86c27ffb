"""The prompts of the page."""

from __future__ import annotations

import json
import re

import pytest

from app.presets import PRESET_FOLDER, TASKS, load_presets, task_of


def test_there_is_one_preset_file_a_task_and_no_other() -> None:
    assert sorted(path.stem for path in PRESET_FOLDER.iterdir()) == sorted(TASKS)


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_at_least_eight_prompts_with_titles_in_both_languages(task: str) -> None:
    rows = json.loads((PRESET_FOLDER / f"{task}.json").read_text(encoding="utf-8"))
    assert len(rows) >= 8
    for row in rows:
        assert row.keys() == {"id", "title", "prompt"}
        assert row["title"].keys() == {"en", "ko"}
        assert re.search("[가-힣]", row["title"]["ko"]) and not re.search("[가-힣]", row["title"]["en"])
        assert row["prompt"] == row["prompt"].strip() != ""


def test_ids_and_prompts_are_unique_over_all_tasks() -> None:
    presets = [preset for group in load_presets().values() for preset in group]
    assert len({preset.id for preset in presets}) == len({preset.prompt for preset in presets}) == len(presets) >= 40


def test_a_summary_prompt_brings_a_passage_of_120_to_250_words() -> None:
    for preset in load_presets()["summarization"]:
        passage = preset.prompt.partition("\n\n")[2]
        assert 120 <= len(passage.split()) <= 250, preset.id


def test_korean_prompts_are_written_in_korean() -> None:
    for preset in load_presets()["korean"]:
        assert len(re.findall("[가-힣]", preset.prompt)) >= 20, preset.id


def test_a_built_in_prompt_is_known_by_its_text_alone() -> None:
    for task, presets in load_presets().items():
        assert all(task_of(preset.prompt) == task for preset in presets)
    assert task_of("no preset") is None
