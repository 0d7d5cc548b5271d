"""Messages on their way to a topic: one partition's producer, a topic's, lazy ones, and the two bulk verbs."""
