"""Why some refusals have no test that produces them, and tests that compare a sentence without its being thrown."""

# (reason, file, part of the sentence; "" for all of the file)
REASONS = [
]

# (test, file, part of the sentence): the test calls what returns the sentence
NAMED_BY_HAND = [
]
