"""Validation of timelines. An invalid timeline never becomes a job."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

MAX_CLIPS = 50
MIN_SECONDS = 1.0  # per clip
MAX_SECONDS = 60.0
MAX_TEXT = 200
MAX_URL = 2_000


def _refusal(message: str) -> PydanticCustomError:
    return PydanticCustomError("refused", message)  # type: ignore[arg-type]


def _check_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        is_valid = (
            parts.scheme in {"http", "https"}
            and bool(parts.hostname)
            and value.isprintable()
            and " " not in value
        )
        is_valid = is_valid and parts.port != 0  # `port` raises ValueError if it is too large
    except ValueError:
        is_valid = False
    if not is_valid or len(value) > MAX_URL:
        raise _refusal("image must be an http or https URL")
    return value


def _check_duration(value: float) -> float:
    if value < MIN_SECONDS:
        raise _refusal("Duration must be at least 1 second")
    if value > MAX_SECONDS:
        raise _refusal(f"Duration must be at most {MAX_SECONDS:g} seconds")
    return value


def _check_text(value: str) -> str:
    if len(value) > MAX_TEXT:
        raise _refusal(f"text must be at most {MAX_TEXT} characters")
    return value


def _check_clips(value: list[Clip]) -> list[Clip]:
    if not value:
        raise _refusal("a timeline needs at least one clip")
    if len(value) > MAX_CLIPS:
        raise _refusal(f"Too many clips: {len(value)}, at most {MAX_CLIPS}")
    return value


class Clip(BaseModel):
    """A picture with its text, shown for some seconds."""

    model_config = ConfigDict(extra="forbid", strict=True)

    image: Annotated[str, AfterValidator(_check_url)]
    duration: Annotated[float, Field(allow_inf_nan=False), AfterValidator(_check_duration)]
    text: Annotated[str, AfterValidator(_check_text)] = ""


class Timeline(BaseModel):
    """The clips of a video, in order."""

    model_config = ConfigDict(extra="forbid", strict=True)

    clips: Annotated[list[Clip], AfterValidator(_check_clips)]

    @property
    def seconds(self) -> float:
        return sum(clip.duration for clip in self.clips)


class Order(BaseModel):
    """Body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    timeline: Timeline


def read_order(body: Any) -> Timeline:
    """Parse the body of a request. Raise ValueError with a sentence for the caller."""
    try:
        return Order.model_validate(body).timeline
    except ValidationError as error:
        raise ValueError(_format_error(error)) from None


def _format_error(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "refused":
        return first["msg"]
    path = ""
    for step in first["loc"]:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    path = path.lstrip(".") or "the body"
    reason = {"missing": "is required", "extra_forbidden": "is not known"}.get(first["type"])
    return f"{path} {reason}" if reason else f"{path}: {first['msg']}"
