"""Everything in the course that is not the lesson of a step."""
