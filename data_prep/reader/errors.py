"""What the reader raises. Every message names dataset, shard and sample, and says what to do."""


class ReaderError(Exception):
    """Base of the reader's errors."""


class DatasetChanged(ReaderError):
    """The files are not those of the manifest: cut, replaced or unreadable. Stage the dataset again."""


class DatumError(ReaderError):
    """A value is no Caffe Datum, or contradicts itself."""


class DecodeError(ReaderError):
    """An encoded image cannot be decoded, or has another shape than the dataset promises."""
