"""Score the classifier: `python -m labelled`. With `--mistakes`, list those of the tuning set."""

from __future__ import annotations

import sys

from labelled.score import score_all


def main() -> None:
    for score in score_all():
        print(score)
        if "--mistakes" in sys.argv and score.name.startswith("tune"):
            for row, failure in score.mistakes:
                found = f"{failure.cls} by {failure.rule}"
                print(f"  {row['id']}: {row['cls']} called {found}: {row['text'][-160:]!r}")


main()
