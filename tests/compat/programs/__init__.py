"""Programs for the official client's API: each takes the module and an environment, and returns what it observed."""
