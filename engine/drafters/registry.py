"""The drafters by name, and the check of a request's drafter settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine.config import DrafterSpec, GenerationRequest
from engine.errors import InvalidRequestError
from engine.records import DrafterInfo, DrafterOption


def settled(request: GenerationRequest, drafters: Sequence[DrafterInfo]) -> GenerationRequest:
    """The request as it will run: with the γ and the options of its drafter's defaults where it gives none itself.

    Options whose default is the same on every machine stay unsaid.

    Raises:
        InvalidRequestError: the drafter is unknown or unavailable.
    """
    return replace(request, drafter=settled_spec(request.drafter, drafters))


def settled_spec(spec: DrafterSpec, drafters: Sequence[DrafterInfo]) -> DrafterSpec:
    """See `settled`."""
    info = _usable(spec, drafters)
    chosen = {} if info.defaults is None else info.defaults.options
    return DrafterSpec(spec.name, info.gamma if spec.gamma is None else spec.gamma, {**chosen, **spec.options})


def check_options(spec: DrafterSpec, drafters: Sequence[DrafterInfo]) -> dict[str, Any]:
    """The settings of a request's drafter, complete with defaults.

    Raises:
        InvalidRequestError: the drafter is unknown or unavailable, or a setting is unknown or out of range.
    """
    known = {option.name: option for option in _usable(spec, drafters).options}
    for name in spec.options:
        if name not in known:
            allowed = ", ".join(known) or "none"
            raise InvalidRequestError(f"option of {spec.name}", name, allowed)
    return {name: _checked(spec, option) for name, option in known.items()}


def _usable(spec: DrafterSpec, drafters: Sequence[DrafterInfo]) -> DrafterInfo:
    found = next((info for info in drafters if info.name == spec.name), None)
    if found is None:
        raise InvalidRequestError("drafter", spec.name, ", ".join(info.name for info in drafters))
    if not found.available:
        usable = ", ".join(info.name for info in drafters if info.available)
        raise InvalidRequestError("drafter", spec.name, f"{usable} ({found.reason})")
    return found


def _checked(spec: DrafterSpec, option: DrafterOption) -> Any:
    value = spec.options.get(option.name, option.default)
    label = f"{spec.name} {option.name}"
    if option.choices:
        if value not in option.choices:
            raise InvalidRequestError(label, value, ", ".join(option.choices))
        return value
    whole = isinstance(option.default, int)
    sound = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    low, high = option.low, option.high
    # Written so that NaN, which is neither below nor above, is refused.
    if not sound or (low is not None and not value >= low) or (high is not None and not value <= high):  # type: ignore[operator]
        kind = "a whole number" if whole else "a number"
        raise InvalidRequestError(label, value, f"{kind} from {low:g} to {high:g}")
    return value
