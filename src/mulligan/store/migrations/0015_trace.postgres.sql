-- The W3C trace context of whoever enqueued a job: traceparent, and tracestate behind a space.
ALTER TABLE {p}job ADD COLUMN trace TEXT;
