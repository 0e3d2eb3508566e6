"""What a step does without running it: memory by position, events by time."""
