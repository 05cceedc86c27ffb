"""Drafters that come with the repository, found by the target that their card names."""

from __future__ import annotations

import json
from pathlib import Path

SHIPPED = Path(__file__).resolve().parent.parent.parent / "assets" / "drafters"


def find_shipped(drafter: str, target_hash: str, root: Path = SHIPPED) -> Path | None:
    """The folder of the drafter for this target: `<root>/<target>/<drafter>` with a card.json that names its hash, or None.

    Args:
        drafter: `eagle`, `medusa` or `draft_model`.
        target_hash: see `loader.ModelFiles.model_hash`.
    """
    for card in sorted(root.glob(f"*/{drafter}/card.json")):
        try:
            named = json.loads(card.read_text(encoding="utf-8")).get("target_hash")
        except (OSError, ValueError, AttributeError):
            continue  # a card that cannot be read names no target
        if named == target_hash:
            return card.parent
    return None


def shown_name(source: str) -> str:
    """What to call a drafter's source: shipped ones by their place in the repository, others as they were asked for."""
    path = Path(source)
    return str(path.relative_to(SHIPPED.parent.parent)) if path.is_relative_to(SHIPPED) else source
