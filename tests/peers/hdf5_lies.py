"""More HDF5 files that must be refused: odd names and attributes, patched bytes, containers that lie. They join the list of hdf5_files.py."""

import h5py
import numpy as np

from hdf5_files import NEW, OLD, beside, low, refused


@refused("control character")
def control_character_in_a_name(path):
    with h5py.File(path, "w") as file:
        file["a\x1b[31m"] = np.arange(4)


@refused("control character")
def newline_in_a_group(path):
    with h5py.File(path, "w") as file:
        file["g\nerror: all is lost/a"] = np.arange(4)


@refused("not UTF-8")
def name_of_no_encoding(path):
    with h5py.File(path, "w") as file:
        low(file, b"\xff\xfe", h5py.h5t.STD_I32LE, (1,), data=np.zeros(1, "i4"))


@refused("'..' is one of its parts")
def parent_folder(path):
    with h5py.File(path, "w") as file:
        file["../../etc/passwd"] = np.arange(4)


@refused("levels deep")
def deep_groups(path):
    with h5py.File(path, "w") as file:
        file["/".join(["g"] * 300) + "/a"] = np.arange(4)


@refused("bytes, more than")
def long_name(path):
    with h5py.File(path, "w", libver=NEW) as file:
        file["n" * 20_000] = np.arange(4)


@refused("strings of 20971520 bytes")
def huge_format(path):
    with h5py.File(path, "w", libver=NEW) as file:
        file.attrs["format"] = np.bytes_(b"x" * (20 << 20))


@refused("strings of 20971520 bytes")
def huge_dtype(path):
    with h5py.File(path, "w", libver=NEW) as file:
        file["a"] = np.arange(4)
        file["a"].attrs["dtype"] = np.bytes_(b"x" * (20 << 20))


@refused("more than 4096 attributes")
def many_attributes(path):
    with h5py.File(path, "w", libver=NEW) as file:
        for i in range(4200):
            file.attrs[f"a{i}"] = i


@refused("dimension labels")
def hostile_label(path):
    with h5py.File(path, "w") as file:
        file["a"] = np.zeros((2, 2))
        for dimension in file["a"].dims:
            dimension.label = "x\x1b[2J"


@refused("dimension labels")
def too_few_labels(path):
    with h5py.File(path, "w") as file:
        file["a"] = np.zeros((2, 2))
        file["a"].attrs["DIMENSION_LABELS"] = ["x"]


# Patched bytes: old files have no checksums over their headers.


def patched(path, find, put):
    whole = bytearray(path.read_bytes())
    at = whole.find(find)
    assert at >= 0 and whole.find(find, at + 1) < 0, "the bytes to patch are not there exactly once"
    whole[at : at + len(put)] = put
    path.write_bytes(bytes(whole))


def two_datasets(path):
    with h5py.File(path, "w", libver=OLD) as file:
        file["a"] = np.arange(1000, dtype="i8")
        file["b"] = np.arange(1000, dtype="f4")
        return [file[name].id.get_offset() for name in ("a", "b")]


def word(number):
    return int(number).to_bytes(8, "little")


@refused("overlap")
def overlap(path):
    a, b = two_datasets(path)
    patched(path, word(b) + word(4000), word(a + 40))


@refused("overlap")
def same_place(path):
    a, b = two_datasets(path)
    patched(path, word(b) + word(4000), word(a))


@refused()
def beyond_the_file(path):
    a, b = two_datasets(path)
    patched(path, word(b) + word(4000), word(1 << 40))


@refused()
def address_that_wraps(path):
    a, b = two_datasets(path)
    patched(path, word(b) + word(4000), word((1 << 64) - 1000))


@refused()
def stored_size_too_small(path):
    a, b = two_datasets(path)
    patched(path, word(b) + word(4000), word(b) + word(3999))


@refused()
def shape_bomb_by_patch(path):
    with h5py.File(path, "w", libver=OLD) as file:
        file["a"] = np.zeros((1234567,), dtype="u1")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(word(1234567) * 2, word(1 << 62) * 2, 1))


@refused("'a/b'", "has a '/' in it")
def link_with_a_slash(path):
    with h5py.File(path, "w", libver=OLD) as file:
        file["aXb"] = np.arange(4)
    patched(path, b"aXb", b"a/b")


@refused("'link'", "a link of an unknown kind")
def link_of_a_kind_of_its_own(path):
    with h5py.File(path, "w") as file:
        file["link"] = h5py.ExternalLink("x.h5", "/a")
    patched(path, b"\x01\x08\x40\x04link", b"\x01\x08\x46\x04link")  # the byte behind the flags: 64 is an external link


# Containers that lie. They begin as a good one.


def container(path, complete=1, version=b"1", dtype=b"F32", crc64=b"0" * 16, name="w"):
    with h5py.File(path, "w", libver=NEW) as file:
        file.attrs["format"] = np.bytes_(b"reshard-hdf5")
        if version is not None:
            file.attrs["format_version"] = np.bytes_(version)
        if complete is not None:
            file.attrs["complete"] = complete
        file.create_group("objects")
        dataset = file.create_dataset(f"tensors/{name}", data=np.arange(4, dtype="f4"))
        if dtype is not None:
            dataset.attrs["dtype"] = np.bytes_(dtype)
        if crc64 is not None:
            dataset.attrs["crc64"] = np.bytes_(crc64)


@refused("'complete' is 0")
def incomplete(path):
    container(path, complete=np.uint8(0))


@refused("'complete' is 0")
def without_complete(path):
    container(path, complete=None)


@refused("'complete' is 0")
def complete_of_another_type(path):
    container(path, complete=np.arange(1000, dtype="f8"))


@refused("format_version is '2'", "newer")
def newer_version(path):
    container(path, complete=np.uint8(1), version=b"2")


@refused("format_version is ''")
def without_version(path):
    container(path, complete=np.uint8(1), version=None)


@refused("'dtype' is ''", "F32")
def container_without_dtype(path):
    container(path, complete=np.uint8(1), dtype=None)


@refused("'dtype' is 'BF16'", "F32")
def container_with_another_dtype(path):
    container(path, complete=np.uint8(1), dtype=b"BF16")


@refused("'dtype' is 'f32'")
def container_with_an_unknown_dtype(path):
    container(path, complete=np.uint8(1), dtype=b"f32")


@refused("'crc64' is ''")
def container_without_digest(path):
    container(path, complete=np.uint8(1), crc64=None)


@refused("'crc64' is '00000000000000zz'")
def container_with_a_bad_digest(path):
    container(path, complete=np.uint8(1), crc64=b"0" * 14 + b"zz")


@refused("%2F nor %25")
def container_with_a_bad_name(path):
    container(path, complete=np.uint8(1), name="a%20b")


@refused("it is not a dataset")
def container_with_a_group_in_tensors(path):
    container(path, complete=np.uint8(1), name="g/w")


@refused("and nothing else")
def container_with_a_third_group(path):
    container(path, complete=np.uint8(1))
    with h5py.File(path, "a") as file:
        file.create_group("other")


@refused("'tensors/link'", "soft link")
def container_with_a_soft_link(path):
    container(path, complete=np.uint8(1))
    with h5py.File(path, "a") as file:
        file["tensors/link"] = h5py.SoftLink("/tensors/w")


@refused("link to another file")
def container_whose_tensors_are_elsewhere(path):
    container(path, complete=np.uint8(1))
    container(beside(path, "-secret.h5"), complete=np.uint8(1))
    with h5py.File(path, "a") as file:
        del file["tensors"]
        file["tensors"] = h5py.ExternalLink(str(beside(path, "-secret.h5")), "/tensors")


@refused("an object is U8")
def container_with_a_wide_object(path):
    container(path, complete=np.uint8(1))
    with h5py.File(path, "a") as file:
        file["objects/o"] = np.arange(4, dtype="i4")
        file["objects/o"].attrs["crc64"] = np.bytes_(b"0" * 16)


@refused("'..' is one of its parts")
def container_with_a_path_as_name(path):
    container(path, complete=np.uint8(1), name="..%2F..%2Fetc%2Fpasswd")
