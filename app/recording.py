"""Hands the events of requests to the recorder; a fault of the store never loses a person's output."""

from __future__ import annotations

import logging
from collections.abc import Callable

from app.contracts import Recorder
from app.handles import Channel
from engine.errors import DraftboardError
from engine.records import Event

_log = logging.getLogger(__name__)


class Recording:
    """What a service records.

    Args:
        recorder: None records nothing.
    """

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = recorder

    def open(self, channel: Channel) -> None:
        """Begins the channel's request in the store, when it belongs to a run."""
        if self._recorder is None or channel.run_id is None:
            return
        try:
            channel.row = self._recorder.open_request(channel.run_id, channel.request, channel.label)
        except Exception as error:  # noqa: BLE001 - see the module
            channel.record_error = _not_saved(error)

    def take(self, channel: Channel, event: Event, written: Callable[[str | None], None] | None = None) -> bool:
        """Gives an event to the recorder; False when there is none for this request, so that nobody will call `written`."""
        if self._recorder is None or channel.row is None:
            return False
        try:
            self._recorder.on_event(channel.row, event, written)
        except Exception as error:  # noqa: BLE001 - see the module
            channel.row, channel.record_error = None, _not_saved(error)
            return False
        return True


def _not_saved(error: Exception) -> str:
    _log.error("A request could not be recorded", exc_info=error)
    return str(error) if isinstance(error, DraftboardError) else f"The run could not be saved: {error}"
