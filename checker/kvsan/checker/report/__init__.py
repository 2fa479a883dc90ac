"""What was found, in words and pictures. Prose may change at any time; the JSON properties may not (`schema/`)."""
