-- What a claim must know first, in one answer.
WITH RECURSIVE {part:waits}
{part:look}
