# What nanobind.stubgen cannot know of safemap._core: the records that signatures name, and the version.
safemap._core.__prefix__:
    from ._records import (
        DiffReport,
        Digests,
        EditReport,
        Examined,
        Expected,
        Extras,
        Finding,
        Layout,
        Mismatch,
        RepairReport,
        Residency,
        SaveReport,
        ScanReport,
        Skipped,
        Training,
        UploadStats,
        VerifyReport,
    )

    __version__: str
