"""Drafters that come with the repository, found by the target that their card names."""

from __future__ import annotations

from pathlib import Path

from engine.errors import CorruptWeightsError
from engine.models.draft_files import read_object

SHIPPED = Path(__file__).resolve().parent.parent.parent / "assets" / "drafters"


def find_shipped(drafter: str, target_hash: str, root: Path = SHIPPED) -> Path | None:
    """The folder of the drafter for this target: `<root>/<target>/<drafter>` with a card.json that names its hash, or None.

    Args:
        drafter: `eagle`, `medusa` or `draft_model`.
        target_hash: see `loader.ModelFiles.model_hash`.
    """
    for path in sorted(root.glob(f"*/{drafter}/card.json")):
        try:
            card = read_object(path) or {}
        except CorruptWeightsError:
            continue  # a card that cannot be read names no target
        if card.get("target_hash") == target_hash:
            return path.parent
    return None


def shown_name(source: str) -> str:
    """What to call a drafter's source: shipped ones by their place in the repository, others as they were asked for."""
    path = Path(source)
    return str(path.relative_to(SHIPPED.parent.parent)) if path.is_relative_to(SHIPPED) else source
