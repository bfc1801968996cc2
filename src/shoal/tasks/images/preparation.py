"""From a photo to one row of a model's input, as the settings of its task say.

    photo --resize, crop--> pixels of the model's size --scale, mean, std--> CHW or HWC

Pixels have 256 values, so whatever scale, mean and datatype a model wants is a table of 256
numbers for each channel, made once. FP32, which most want, is quicker to compute than to look up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from PIL import Image

from shoal.core import dtypes
from shoal.core.dtypes import DataType
from shoal.core.tensor import Buffer
from shoal.errors import ConfigError, InvalidArgument
from shoal.tasks.images.decode import MOST_PIXELS, Photo, Size, flat
from shoal.tasks.images.resampling import by_opencv
from shoal.tasks.settings import TaskSettings

MOST_BYTES = 20_000_000
_MARGIN = 256 / 224  # how much larger than the crop a photo is made; the usual ratio
_SPARE = 3.0  # a photo is averaged in blocks first where it is more than this times too large
_LONG = 32  # as many times the model's size
_FILTERS = MappingProxyType(
    {
        "nearest": Image.Resampling.NEAREST,
        "bilinear": Image.Resampling.BILINEAR,
        "bicubic": Image.Resampling.BICUBIC,
        "lanczos": Image.Resampling.LANCZOS,
    }
)
_IMAGENET = MappingProxyType(
    {1: ((0.449,), (0.226,)), 3: ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))}
)
_FLOATS = (dtypes.FP16, dtypes.FP32, dtypes.FP64, dtypes.BF16)


@dataclass(frozen=True, slots=True, eq=False)
class ImagePreparation:
    """How photos become rows. Any thread may call it, any number of them at once."""

    height: int
    width: int
    channels: int  # 1: grey, 3: colours
    channels_first: bool
    reverse: bool  # blue first
    cover: Size | None  # what the photo must cover before the middle is cut out; None: stretched
    resampling: Image.Resampling
    antialias: bool
    table: np.ndarray  # [channels, 256]: what the model gets for each value of a pixel
    line: tuple[np.ndarray, np.ndarray] | None  # or what to multiply by and to add, for FP32
    most_bytes: int = MOST_BYTES
    most_pixels: int = MOST_PIXELS

    @classmethod
    def of(
        cls,
        settings: TaskSettings,
        dims: Sequence[int],
        datatype: DataType,
        declared_format: str = "FORMAT_NONE",
    ) -> ImagePreparation:
        """What the settings say for an input of these dims, which leave the batch dimension out.

        Reads: size, resize, crop, interpolation, antialias, scale, mean, std, layout,
        channel_order, max_bytes, max_pixels. Raises ConfigError.
        """
        channels_first = _channels_first(settings, dims, declared_format)
        channels = dims[0] if channels_first else dims[2]
        channels = 3 if channels == -1 else channels
        height, width = _size(settings, dims[1:] if channels_first else dims[:2])
        interpolation = settings.choice("interpolation", "bilinear", tuple(_FILTERS))
        antialias = settings.flag("antialias", True)
        if not antialias and interpolation == "lanczos":
            settings.wrong("antialias", "lanczos needs it", "Write true, or another interpolation")
        order = settings.choice("channel_order", "RGB", ("RGB", "BGR"))
        table = _table(settings, channels, datatype)
        return cls(
            height,
            width,
            channels,
            channels_first,
            order == "BGR" and channels == 3,
            _cover(settings, width, height),
            _FILTERS[interpolation],
            antialias,
            table,
            _line(table, width, channels_first=channels_first) if datatype is dtypes.FP32 else None,
            settings.integer("max_bytes", MOST_BYTES, lowest=1, highest=1 << 31),
            settings.integer("max_pixels", MOST_PIXELS, lowest=1, highest=1 << 31),
        )

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of a row."""
        if self.channels_first:
            return self.channels, self.height, self.width
        return self.height, self.width, self.channels

    def __call__(
        self, data: Buffer, title: str = "the image", out: np.ndarray | None = None
    ) -> np.ndarray:
        """The photo in `data` as a row, without the batch dimension; in `out` where that is given.

        Raises InvalidArgument, whose sentence begins with `title`, for what is no image, broken or
        too large.
        """
        photo = self.opened(data, title)
        grey = self.channels == 1
        image, whole = photo.decode(self._resized, grey=grey)
        return self.filled(self._fitted(image, whole, grey=grey), out)

    def opened(self, data: Buffer, title: str = "the image") -> Photo:
        """The photo, its head read and its size checked. Raises InvalidArgument."""
        size_bytes = memoryview(data).nbytes
        if size_bytes > self.most_bytes:
            raise InvalidArgument(
                f"{title} has {size_bytes:,} bytes, at most {self.most_bytes:,} are taken; send "
                f"it smaller"
            )
        return Photo(data, title, self.most_pixels)

    def place(self, whole: Size) -> tuple[Size, tuple[int, int, int, int]]:
        """The size a photo is made, and the part that is kept: left, top, right, bottom."""
        width, height = self._resized(whole)
        left, top = round((width - self.width) / 2), round((height - self.height) / 2)
        return (width, height), (left, top, left + self.width, top + self.height)

    def may_be_made(self, whole: Size) -> bool:
        """Whether a photo may be resized as a whole; of a very long one that would be too much."""
        width, height = self._resized(whole)
        return width * height <= _LONG * self.width * self.height

    def _resized(self, whole: Size) -> Size:
        """The size that a photo is made, before its middle is cut out."""
        if self.cover is None:
            return self.width, self.height
        width, height = whole
        if self.cover[0] * height >= self.cover[1] * width:  # the width is what must be reached
            return self.cover[0], max(self.cover[1], int(height * self.cover[0] / width))
        return max(self.cover[0], int(width * self.cover[1] / height)), self.cover[1]

    def _fitted(self, image: Image.Image, whole: Size, *, grey: bool) -> np.ndarray:
        """The pixels of the photo's middle in the model's size: made and cut in one step."""
        (width, height), (left, top, right, bottom) = self.place(whole)
        plain = not self.antialias and self.resampling == Image.Resampling.BILINEAR
        if plain and not grey and self.may_be_made(whole):
            pixels = by_opencv(image, (width, height))
            if pixels is not None:
                return pixels[top:bottom, left:right]
        across, down = image.width / width, image.height / height
        box = (left * across, top * down, right * across, bottom * down)
        size = (self.width, self.height)
        if image.size == (width, height):
            fitted = image.crop((left, top, right, bottom))
        elif self.antialias:
            fitted = image.resize(size, self.resampling, box, reducing_gap=_SPARE)
        else:
            fitted = image.transform(size, Image.Transform.EXTENT, box, self.resampling)
        return np.asarray(flat(fitted, grey=grey))

    def filled(self, pixels: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Pixels of the model's size as the numbers that it gets."""
        pixels = pixels.reshape(self.height, self.width, self.channels)
        if self.reverse:
            pixels = pixels[:, :, ::-1]
        if out is None:
            out = np.empty(self.shape, self.table.dtype)
        if self.line is not None:
            source = pixels.transpose(2, 0, 1) if self.channels_first else pixels
            np.multiply(source, self.line[0], out=out)
            np.add(out, self.line[1], out=out)
            return out
        for channel, table in enumerate(self.table):
            if self.channels_first:
                np.take(table, pixels[:, :, channel], out=out[channel], mode="clip")  # no copy
            else:
                out[:, :, channel] = table[pixels[:, :, channel]]
        return out


def _channels_first(settings: TaskSettings, dims: Sequence[int], declared_format: str) -> bool:
    if len(dims) != 3:
        raise ConfigError(
            f"has the dims {list(dims)}; photos need three: channels, height and width",
            file="config.pbtxt",
            field="input.dims",
            fix="Write dims: [ 3, 224, 224 ], and max_batch_size for the dimension of the batch",
        )
    told = {"FORMAT_NCHW": "NCHW", "FORMAT_NHWC": "NHWC"}.get(declared_format, "auto")
    layout = settings.choice("layout", told, ("auto", "NCHW", "NHWC"))
    if layout == "auto":
        layout = "NCHW" if dims[0] in (1, 3) else "NHWC" if dims[2] in (1, 3) else ""
    place = {"NCHW": 0, "NHWC": 2}.get(layout)
    if place is None or dims[place] not in (1, 3, -1):
        settings.wrong(
            "layout",
            f"the input has the dims {list(dims)}, of which none that holds the channels is 1 or 3",
            'Write "NCHW" or "NHWC", for a model of grey (1) or coloured (3) images',
        )
    return place == 0


def _size(settings: TaskSettings, dims: Sequence[int]) -> tuple[int, int]:
    """Height and width: those of the dims, or what the setting says where they are open."""
    value = settings.value("size")
    pair = [value, value] if type(value) is int else value
    if value is None:
        pair = list(dims)
    if type(pair) is not list or len(pair) != 2 or any(type(n) is not int for n in pair):
        settings.wrong("size", f"found {value!r}", "Write 224, or [height, width]")
    if -1 in pair:
        settings.wrong(
            "size", f"the model takes images of any size {list(dims)}", "Say which one: 224"
        )
    for dim, asked in zip(dims, pair, strict=True):
        if not 1 <= asked <= 1 << 14 or dim not in (-1, asked):
            settings.wrong(
                "size", f"{pair} is not what the model takes: {list(dims)}", "Leave it out"
            )
    return pair[0], pair[1]


def _cover(settings: TaskSettings, width: int, height: int) -> Size | None:
    """What a photo must cover before its middle is cut out; None where it is stretched."""
    shorter = min(width, height)
    crop = settings.choice("crop", "center", ("center", "none"))
    if crop == "none":
        if settings.value("resize") is not None:
            settings.wrong(
                "resize",
                "photos are stretched to the model's size, as 'crop' is none",
                'Leave it out, or write "crop": "center"',
            )
        return None
    resize = settings.integer(
        "resize", round(shorter * _MARGIN), lowest=shorter, highest=max(1 << 14, shorter)
    )
    return round(width * resize / shorter), round(height * resize / shorter)


def _table(settings: TaskSettings, channels: int, datatype: DataType) -> np.ndarray:
    """What each value of a pixel becomes: (value * scale - mean) / std."""
    if datatype in (dtypes.BYTES, dtypes.BOOL):
        raise ConfigError(
            f"is of type {datatype.config_name}; photos become numbers",
            file="config.pbtxt",
            field="input.data_type",
        )
    asis = any(settings.value(name) is not None for name in ("scale", "mean", "std"))
    asis = asis or datatype not in _FLOATS
    mean, deviation = ((0.0,) * channels, (1.0,) * channels) if asis else _IMAGENET[channels]
    scale = _scale(settings, 1.0 if asis else 1 / 255)
    means = settings.numbers("mean", mean, count=channels)
    deviations = settings.numbers("std", deviation, count=channels)
    if 0 in deviations:
        settings.wrong("std", "found 0, by which nothing can be divided", "Write 1 to leave it out")
    table = (np.arange(256) * scale - np.array(means)[:, None]) / np.array(deviations)[:, None]
    if datatype in _FLOATS:
        return _floats(table, datatype)
    limits = np.iinfo(datatype.numpy)  # type: ignore[type-var]
    whole = np.rint(table)
    if np.abs(whole - table).max() > 1e-6 or whole.min() < limits.min or whole.max() > limits.max:
        settings.wrong(
            "scale" if settings.value("scale") is not None else "mean",
            f"the input is {datatype.name}, and pixels from 0 to 255 become {table.min():g} to "
            f"{table.max():g}, which that cannot hold as whole numbers",
            'Choose scale, mean and std such that it can, as "mean": 128 for INT8',
        )
    fitting: np.ndarray = whole.astype(datatype.numpy)
    return fitting


def _line(table: np.ndarray, width: int, *, channels_first: bool) -> tuple[np.ndarray, np.ndarray]:
    """The straight line through each row of the table, in a shape that goes with the pixels."""
    offsets = table[:, 0].astype(np.float64)
    factors = (table[:, 255] - offsets) / 255
    shaped = [
        each[:, None, None] if channels_first else np.tile(each, (width, 1))
        for each in (factors, offsets)
    ]
    return shaped[0].astype(np.float32), shaped[1].astype(np.float32)


def _floats(table: np.ndarray, datatype: DataType) -> np.ndarray:
    if datatype is not dtypes.BF16:
        return table.astype(datatype.numpy)
    bits = np.ascontiguousarray(table, np.float32).view(np.uint32)
    rounded: np.ndarray = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16  # to nearest, ties to even
    return rounded.astype(np.uint16)


def _scale(settings: TaskSettings, default: float) -> float:
    """A number, or a fraction such as "1/255", for which JSON has no other words."""
    value: Any = settings.value("scale", default)
    if type(value) is str:
        above, _, below = value.partition("/")
        try:
            value = float(above) / float(below)
        except (ValueError, ZeroDivisionError):
            value = None
    if type(value) not in (int, float) or not 0 < value < 1e6:
        shown = settings.value("scale")
        settings.wrong("scale", f"found {shown!r}", 'Write a number above 0, or "1/255"')
    return float(value)
