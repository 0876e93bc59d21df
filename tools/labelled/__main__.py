"""python -m labelled [--mistakes]: score the classifier; `--mistakes` lists those of the tuning set."""

from __future__ import annotations

import sys

from labelled.score import score_all


def main() -> None:
    for score in score_all():
        print(score)
        if "--mistakes" in sys.argv and score.name.startswith("tune"):
            for row, failure in score.mistakes:
                text = row["text"][-160:]
                print(
                    f"  {row['id']}: {row['cls']} called {failure.cls} by {failure.rule}: {text!r}"
                )


main()
