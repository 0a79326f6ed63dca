"""Streams of Airbyte's low-code manifests, interpreted by ``airbyte-cdk`` (the extra ``airbyte``) page by page.

Nothing here imports the CDK before a stream is built; only modules with an underscore use its private names.
"""
