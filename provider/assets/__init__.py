"""Assets of this provider: the topics of Pulsar."""
