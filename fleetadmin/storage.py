"""Static files with a hash in their names."""

from whitenoise.storage import CompressedManifestStaticFilesStorage


class HashedStaticFiles(CompressedManifestStaticFilesStorage):
    """Leaves sourceMappingURL alone: the maps are not shipped, and Django's patterns would look for them."""

    patterns = tuple(
        (extension, tuple(p for p in patterns if "sourceMappingURL" not in (p if isinstance(p, str) else p[0])))
        for extension, patterns in CompressedManifestStaticFilesStorage.patterns
    )
