"""Converts a photo to one row of a model's input, according to the task's settings.

    photo --resize, crop--> pixels of the model's size --scale, mean, std--> CHW or HWC

A pixel has 256 values, so any scale, mean and datatype is a table of 256 numbers for each channel,
computed once. FP32, the most frequent case, is faster to compute than to look up. Bytes that stay
as they are need neither.
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
_MARGIN = 256 / 224  # the size of the photo before the crop, relative to the crop; the usual ratio
_SPARE = 3.0  # larger photos are averaged in blocks first
_LARGEST_RESIZED = 32  # times the pixels of the model's input
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
    """Converts photos to rows. Any thread may call it, concurrently."""

    height: int
    width: int
    channels: int  # 1: grey, 3: colour
    channels_first: bool
    reverse: bool  # BGR
    cover: Size | None  # the minimum size before the centre crop; None: stretch
    stretch: Size  # the size before the centre crop, if photos are stretched
    resampling: Image.Resampling
    antialias: bool
    table: np.ndarray  # [channels, 256]: the input for each value of a pixel
    line: tuple[np.ndarray, np.ndarray] | None  # or factor and offset, for FP32
    most_bytes: int = MOST_BYTES
    most_pixels: int = MOST_PIXELS
    as_they_are: bool = False  # whether the table changes nothing

    @classmethod
    def of(
        cls,
        settings: TaskSettings,
        dims: Sequence[int],
        datatype: DataType,
        declared_format: str = "FORMAT_NONE",
    ) -> ImagePreparation:
        """The preparation for an input of these dims, without the batch dimension.

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
            *_before_crop(settings, width, height),
            _FILTERS[interpolation],
            antialias,
            table,
            _factors(table, width, channels_first=channels_first)
            if datatype is dtypes.FP32
            else None,
            settings.integer("max_bytes", MOST_BYTES, lowest=1, highest=1 << 31),
            settings.integer("max_pixels", MOST_PIXELS, lowest=1, highest=1 << 31),
            table.dtype == np.uint8 and bool((table == np.arange(256)).all()),
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
        """The photo in `data` as a row without the batch dimension, in `out` if that is given.

        Raises InvalidArgument, which names the photo by `title`, if it is not an image, corrupt or
        too large.
        """
        photo = self.opened(data, title)
        grey = self.channels == 1
        image, whole = photo.decode(self._resized, grey=grey)
        return self.filled(self._fitted(image, whole, grey=grey), out)

    def opened(self, data: Buffer, title: str = "the image") -> Photo:
        """The photo, with its header read and its size checked. Raises InvalidArgument."""
        size_bytes = memoryview(data).nbytes
        if size_bytes > self.most_bytes:
            raise InvalidArgument(
                f"{title} has {size_bytes:,} bytes, at most {self.most_bytes:,} are allowed; send "
                f"a smaller one"
            )
        return Photo(data, title, self.most_pixels)

    def crop(self, whole: Size) -> tuple[Size, tuple[int, int, int, int]]:
        """The size after resizing, and the box that is kept: left, top, right, bottom."""
        width, height = self._resized(whole)
        left, top = round((width - self.width) / 2), round((height - self.height) / 2)
        return (width, height), (left, top, left + self.width, top + self.height)

    def may_be_resized(self, whole: Size) -> bool:
        """Whether a photo may be resized before the crop; a very long one takes too much memory."""
        width, height = self._resized(whole)
        return width * height <= _LARGEST_RESIZED * self.width * self.height

    def _resized(self, whole: Size) -> Size:
        """The size of a photo before the centre crop."""
        if self.cover is None:
            return self.stretch
        width, height = whole
        if self.cover[0] * height >= self.cover[1] * width:  # the width decides
            return self.cover[0], max(self.cover[1], int(height * self.cover[0] / width))
        return max(self.cover[0], int(width * self.cover[1] / height)), self.cover[1]

    def _fitted(self, image: Image.Image, whole: Size, *, grey: bool) -> np.ndarray:
        """The photo's centre in the model's size: resized and cropped in one step."""
        (width, height), (left, top, right, bottom) = self.crop(whole)
        plain = not self.antialias and self.resampling == Image.Resampling.BILINEAR
        if plain and not grey and self.may_be_resized(whole):
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
        """Pixels of the model's size as its input."""
        pixels = pixels.reshape(self.height, self.width, self.channels)
        if self.reverse:
            pixels = pixels[:, :, ::-1]
        if out is None:
            out = np.empty(self.shape, self.table.dtype)
        source = pixels.transpose(2, 0, 1) if self.channels_first else pixels
        if self.as_they_are:
            np.copyto(out, source)
            return out
        if self.line is not None:
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
    declared = {"FORMAT_NCHW": "NCHW", "FORMAT_NHWC": "NHWC"}.get(declared_format, "auto")
    layout = settings.choice("layout", declared, ("auto", "NCHW", "NHWC"))
    if layout == "auto":
        layout = "NCHW" if dims[0] in (1, 3) else "NHWC" if dims[2] in (1, 3) else ""
    axis = {"NCHW": 0, "NHWC": 2}.get(layout)
    if axis is None or dims[axis] not in (1, 3, -1):
        settings.wrong(
            "layout",
            f"the input has the dims {list(dims)}, whose channel dimension is not 1 or 3",
            'Write "NCHW" or "NHWC", for a model of grey (1) or colour (3) images',
        )
    return axis == 0


def _size(settings: TaskSettings, dims: Sequence[int]) -> tuple[int, int]:
    """Height and width: those of the dims, or those of the setting if the dims are variable."""
    value = settings.value("size")
    pair = [value, value] if type(value) is int else value
    if value is None:
        pair = list(dims)
    if type(pair) is not list or len(pair) != 2 or any(type(n) is not int for n in pair):
        settings.wrong("size", f"found {value!r}", "Write 224, or [height, width]")
    if -1 in pair:
        settings.wrong(
            "size", f"the model takes images of any size {list(dims)}", "Write one, such as 224"
        )
    for dim, length in zip(dims, pair, strict=True):
        if not 1 <= length <= 1 << 14 or dim not in (-1, length):
            settings.wrong(
                "size", f"{pair} does not match the model's input: {list(dims)}", "Leave it out"
            )
    return pair[0], pair[1]


def _before_crop(settings: TaskSettings, width: int, height: int) -> tuple[Size | None, Size]:
    """The minimum size of a photo before the centre crop, or None and what it is stretched to."""
    shorter = min(width, height)
    crop = settings.choice("crop", "center", ("center", "none"))
    if crop == "none":
        if settings.value("resize") is not None:
            settings.wrong(
                "resize",
                "photos are stretched to the model's size because 'crop' is none",
                'Leave it out, or write "crop": "center"',
            )
        return None, (width, height)
    pair = settings.value("resize")
    if type(pair) is list:
        if len(pair) != 2 or any(type(n) is not int or n > 1 << 14 for n in pair):
            settings.wrong("resize", f"found {pair!r}", "Write 256, or [height, width]")
        if pair[0] < height or pair[1] < width:
            settings.wrong("resize", f"{pair} is smaller than the crop", "Write larger lengths")
        return None, (pair[1], pair[0])
    resize = settings.integer(
        "resize", round(shorter * _MARGIN), lowest=shorter, highest=max(1 << 14, shorter)
    )
    cover = round(width * resize / shorter), round(height * resize / shorter)
    return cover, cover


def _table(settings: TaskSettings, channels: int, datatype: DataType) -> np.ndarray:
    """The input for each value of a pixel: (value * scale - mean) / std."""
    if datatype in (dtypes.BYTES, dtypes.BOOL):
        raise ConfigError(
            f"is of type {datatype.config_name}; photos become numbers",
            file="config.pbtxt",
            field="input.data_type",
        )
    unchanged = any(settings.value(name) is not None for name in ("scale", "mean", "std"))
    unchanged = unchanged or datatype not in _FLOATS
    mean, deviation = ((0.0,) * channels, (1.0,) * channels) if unchanged else _IMAGENET[channels]
    scale = _scale(settings, 1.0 if unchanged else 1 / 255)
    means = settings.numbers("mean", mean, count=channels)
    deviations = settings.numbers("std", deviation, count=channels)
    if 0 in deviations:
        settings.wrong("std", "found 0, a division by zero", "Write 1 to leave it out")
    table = (np.arange(256) * scale - np.array(means)[:, None]) / np.array(deviations)[:, None]
    if datatype in _FLOATS:
        return _floats(table, datatype)
    limits = np.iinfo(datatype.numpy)  # type: ignore[type-var]
    whole = np.rint(table)
    if np.abs(whole - table).max() > 1e-6 or whole.min() < limits.min or whole.max() > limits.max:
        settings.wrong(
            "scale" if settings.value("scale") is not None else "mean",
            f"the input is {datatype.name}, and pixels from 0 to 255 become {table.min():g} to "
            f"{table.max():g}, which are not whole numbers of that type",
            'Choose scale, mean and std so that they are, such as "mean": 128 for INT8',
        )
    fitting: np.ndarray = whole.astype(datatype.numpy)
    return fitting


def _factors(
    table: np.ndarray, width: int, *, channels_first: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Factor and offset for each row of the table, in a shape that broadcasts to the pixels."""
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
    """A number, or a fraction such as "1/255", which JSON cannot express as a number."""
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
