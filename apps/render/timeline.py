"""What may be rendered. Nothing else becomes a job."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

MOST_CLIPS = 50
SHORTEST, LONGEST = 1.0, 60.0  # seconds of one clip
MOST_TEXT = 200
MOST_URL = 2_000


def _refuse(words: str) -> PydanticCustomError:
    return PydanticCustomError("refused", words)  # type: ignore[arg-type]


def _address(value: str) -> str:
    try:
        parts = urlsplit(value)
        good = (
            parts.scheme in {"http", "https"}
            and bool(parts.hostname)
            and value.isprintable()
            and " " not in value
        )
        good = good and parts.port != 0  # to ask for one that is too large raises
    except ValueError:
        good = False
    if not good or len(value) > MOST_URL:
        raise _refuse("image must be an http or https URL")
    return value


def _duration(value: float) -> float:
    if value < SHORTEST:
        raise _refuse("Duration must be at least 1 second")
    if value > LONGEST:
        raise _refuse(f"Duration must be at most {LONGEST:g} seconds")
    return value


def _words(value: str) -> str:
    if len(value) > MOST_TEXT:
        raise _refuse(f"text must be at most {MOST_TEXT} characters")
    return value


def _clips(value: list[Clip]) -> list[Clip]:
    if not value:
        raise _refuse("a timeline needs at least one clip")
    if len(value) > MOST_CLIPS:
        raise _refuse(f"Too many clips: {len(value)}, at most {MOST_CLIPS}")
    return value


class Clip(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    image: Annotated[str, AfterValidator(_address)]
    duration: Annotated[float, Field(allow_inf_nan=False), AfterValidator(_duration)]
    text: Annotated[str, AfterValidator(_words)] = ""


class Timeline(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    clips: Annotated[list[Clip], AfterValidator(_clips)]

    @property
    def seconds(self) -> float:
        return sum(clip.duration for clip in self.clips)


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    timeline: Timeline


def read_order(body: Any) -> Timeline:
    """Raises ValueError with one sentence for whoever sent it."""
    try:
        return Order.model_validate(body).timeline
    except ValidationError as refused:
        raise ValueError(_sentence(refused)) from None


def _sentence(refused: ValidationError) -> str:
    first = refused.errors(include_url=False, include_input=False)[0]
    if first["type"] == "refused":
        return first["msg"]
    path = "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]
    ).lstrip(".")
    said = {"missing": "is required", "extra_forbidden": "is not known"}.get(first["type"])
    return f"{path or 'the body'} {said}" if said else f"{path or 'the body'}: {first['msg']}"
