"""Streams of Airbyte's low-code manifests, interpreted by ``airbyte-cdk`` (the extra ``airbyte``) page by page.

Nothing here imports the CDK before a stream is built; ``_cdk`` alone knows its classes and private names.
"""
