"""Define the errors of the reader. Every message names dataset, shard and sample, and says what to do."""


class ReaderError(Exception):
    """The base of the reader's errors."""


class DatasetChanged(ReaderError):
    """The files are not those of the manifest: cut, replaced or unreadable. The dataset must be staged again."""


class DatumError(ReaderError):
    """A value is no Caffe Datum, or contradicts itself."""


class DecodeError(ReaderError):
    """An encoded image cannot be decoded, or has another shape than the dataset promises."""
