"""The oracle of Airbyte manifests: the CDK's own read of each, on an API made up from it."""
