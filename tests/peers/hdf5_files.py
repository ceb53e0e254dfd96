"""HDF5 files made with h5py: good ones, and ones that must be refused.

Each maker takes a path that ends in .h5 and writes the file there; files beside it are named after it.
"""

import h5py
import numpy as np

OLD = ("earliest", "v110")  # headers without checksums
NEW = ("v108", "v110")


def low(file, name, type_id, shape, layout=None, data=None):
    """A dataset through the low interface: any type, any layout."""
    space = h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if layout is not None:
        properties.set_layout(layout)
    dataset = h5py.h5d.create(file.id, name.encode() if isinstance(name, str) else name, type_id, space, dcpl=properties)
    if data is not None:
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, data, mtype=type_id)
    return dataset


def bf16_type():
    made = h5py.h5t.IEEE_F32LE.copy()
    made.set_fields(15, 7, 8, 0, 7)
    made.set_size(2)
    made.set_ebias(127)
    return made


# Refused: (maker, words of the sentence).

REFUSED = []


def refused(*words):
    def keep(maker):
        REFUSED.append((maker.__name__, maker, words))
        return maker

    return keep


def beside(path, ending):
    return path.with_name(path.stem + ending)


@refused("'link'", "soft link")
def soft_link(path):
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(4)
        file["link"] = h5py.SoftLink("/a")


@refused("'link'", "soft link")
def dangling_soft_link(path):
    with h5py.File(path, "w") as file:
        file["link"] = h5py.SoftLink("/nowhere")


@refused("'g/h'", "soft link")
def soft_link_to_a_group(path):
    with h5py.File(path, "w") as file:
        file["real/a"] = np.arange(4)
        file.create_group("g")["h"] = h5py.SoftLink("/real")


@refused("'link'", "link to another file")
def external_link(path):
    with h5py.File(beside(path, "-secret.h5"), "w") as file:
        file["a"] = np.arange(4)
    with h5py.File(path, "w") as file:
        file["link"] = h5py.ExternalLink(str(beside(path, "-secret.h5")), "/a")


@refused("'g/mid'", "link to another file")
def external_link_to_a_group(path):
    with h5py.File(beside(path, "-secret.h5"), "w") as file:
        file["deep/a"] = np.arange(4)
    with h5py.File(path, "w") as file:
        file.create_group("g")["mid"] = h5py.ExternalLink(str(beside(path, "-secret.h5")), "/deep")


@refused("'b'", "hard link to 'a'")
def hard_link(path):
    with h5py.File(path, "w") as file:
        file["a"] = np.arange(4)
        file["b"] = file["a"]


@refused("hard link to")
def hard_link_in_another_group(path):
    with h5py.File(path, "w") as file:
        file["x/a"] = np.arange(4)
        file.create_group("y")["a"] = file["x/a"]


@refused("'g/up'", "hard link to '/'")
def cycle_through_the_root(path):
    with h5py.File(path, "w") as file:
        file.create_group("g")["up"] = file["/"]


@refused("hard link to")
def cycle_of_groups(path):
    with h5py.File(path, "w") as file:
        inner = file.create_group("g/h")
        inner["again"] = file["g"]


@refused("'self'", "hard link to '/'")
def group_in_itself(path):
    with h5py.File(path, "w") as file:
        file["self"] = file["/"]


def virtual(path, source):
    with h5py.File(path, "w") as file:
        layout = h5py.VirtualLayout(shape=(4,), dtype="i8")
        layout[:] = h5py.VirtualSource(source, "a", shape=(4,))
        file.create_virtual_dataset("v", layout)


@refused("'v'", "virtual dataset")
def virtual_dataset(path):
    with h5py.File(beside(path, "-secret.h5"), "w") as file:
        file["a"] = np.arange(4)
    virtual(path, str(beside(path, "-secret.h5")))


@refused("'v'", "virtual dataset")
def virtual_dataset_without_source(path):
    virtual(path, str(beside(path, "-nowhere.h5")))


@refused("virtual dataset")
def virtual_dataset_in_the_same_file(path):
    virtual(path, ".")


@refused("'v'", "virtual dataset")
def unlimited_virtual_dataset(path):
    with h5py.File(beside(path, "-secret.h5"), "w") as file:
        file.create_dataset("a", data=np.arange(4), maxshape=(None,), chunks=(4,))
    with h5py.File(path, "w") as file:
        layout = h5py.VirtualLayout(shape=(4,), maxshape=(None,), dtype="i8")
        source = h5py.VirtualSource(str(beside(path, "-secret.h5")), "a", shape=(4,), maxshape=(None,))
        layout[0 : h5py.h5s.UNLIMITED : 1] = source[0 : h5py.h5s.UNLIMITED : 1]
        file.create_virtual_dataset("v", layout)


@refused("'e'", "in other files")
def external_storage(path):
    beside(path, "-secret.bin").write_bytes(bytes(32))
    with h5py.File(path, "w") as file:
        file.create_dataset("e", (4,), "i8", external=[(str(beside(path, "-secret.bin")), 0, 32)])


@refused("'e'", "in other files")
def external_storage_of_the_system(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("e", (64,), "u1", external=[("/etc/passwd", 0, 64)])


@refused("'c'", "in chunks, with 0 filters")
def chunked(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("c", data=np.arange(100), chunks=(10,))


@refused("'c'", "in chunks, with 1 filters")
def gzip(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("c", data=np.arange(100), compression="gzip")


@refused("'c'", "in chunks, with 2 filters")
def shuffle_and_lzf(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("c", data=np.arange(100), compression="lzf", shuffle=True)


@refused("'c'", "in chunks")
def scale_offset(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("c", data=np.arange(100), scaleoffset=4)


@refused("'c'", "in chunks")
def fletcher32(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("c", data=np.arange(100), fletcher32=True)


@refused("'c'", "in chunks")
def resizable(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("c", (0,), "f4", maxshape=(None,))


@refused("'c'", "compact")
def compact(path):
    with h5py.File(path, "w") as file:
        low(file, "c", h5py.h5t.STD_I32LE, (4,), h5py.h5d.COMPACT, np.arange(4, dtype="i4"))


@refused("'s'", "strings")
def variable_strings(path):
    with h5py.File(path, "w") as file:
        file["s"] = ["a", "bc"]


@refused("'s'", "strings")
def fixed_strings(path):
    with h5py.File(path, "w") as file:
        file["s"] = np.array([b"ab", b"cd"])


@refused("'s'", "variable length")
def ragged_arrays(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("s", (2,), h5py.vlen_dtype("i4"))[0] = [1, 2]


@refused("'c'", "compound")
def compound(path):
    with h5py.File(path, "w") as file:
        file["c"] = np.zeros(3, dtype=[("a", "f4"), ("b", "f4")])


@refused("'c'", "compound")
def complex_of_two_widths(path):
    with h5py.File(path, "w") as file:
        file["c"] = np.zeros(3, dtype=[("r", "f4"), ("i", "f8")])


@refused("'r'", "references")
def object_references(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("r", (1,), h5py.ref_dtype)[0] = file.ref


@refused("'r'", "references")
def region_references(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("r", (1,), h5py.regionref_dtype)


@refused("'o'", "opaque")
def opaque(path):
    with h5py.File(path, "w") as file:
        file["o"] = np.zeros(3, dtype="V5")


@refused("'b'", "big-endian integer")
def big_endian_integers(path):
    with h5py.File(path, "w") as file:
        file["b"] = np.arange(3, dtype=">i4")


@refused("'b'", "big-endian floating-point")
def big_endian_floats(path):
    with h5py.File(path, "w") as file:
        file["b"] = np.arange(3, dtype=">f8")


@refused("'b'", "big-endian")
def big_endian_with_a_dtype(path):
    with h5py.File(path, "w") as file:
        file["b"] = np.arange(3, dtype=">f4")
        file["b"].attrs["dtype"] = "F32"


@refused("'b'", "compound")
def big_endian_complex(path):
    with h5py.File(path, "w") as file:
        file["b"] = np.zeros(3, dtype=">c8")


@refused("'e'", "enumeration")
def enumeration(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("e", (3,), h5py.enum_dtype({"RED": 0, "BLUE": 1}, "i1"))[:] = 0


@refused("'a'", "arrays")
def array_elements(path):
    with h5py.File(path, "w") as file:
        low(file, "a", h5py.h5t.array_create(h5py.h5t.IEEE_F32LE, (2, 2)), (3,))


@refused("'b'", "bit field")
def bit_field(path):
    with h5py.File(path, "w") as file:
        low(file, "b", h5py.h5t.STD_B8LE, (3,))


@refused("'i'", "integer of 12 bits in 2 bytes")
def narrow_integer(path):
    made = h5py.h5t.STD_U16LE.copy()
    made.set_precision(12)
    with h5py.File(path, "w") as file:
        low(file, "i", made, (3,))


@refused("'f'", "floating-point number of 16 bytes")
def long_double(path):
    with h5py.File(path, "w") as file:
        file["f"] = np.zeros(3, dtype="longdouble")


@refused("'f'", "floating-point number of 1 bytes")
def eight_bit_float(path):
    made = h5py.h5t.IEEE_F32LE.copy()
    made.set_fields(7, 3, 4, 0, 3)
    made.set_size(1)
    made.set_ebias(7)
    with h5py.File(path, "w") as file:
        low(file, "f", made, (3,))


@refused("'n'", "H5S_NULL")
def empty_extent(path):
    with h5py.File(path, "w") as file:
        file["n"] = h5py.Empty("f4")


@refused("'n'", "no storage")
def never_written(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("n", (10, 10), "f4", fillvalue=None)


@refused("'n'", "no storage")
def shape_bomb(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("n", (1 << 31, 1 << 20), "f4")


@refused("'t'", "neither a group nor a dataset")
def named_type(path):
    with h5py.File(path, "w") as file:
        file["t"] = np.dtype("f4")


def old_sample(path):
    """A file of the old kind, whose headers have no checksums, with much in it that can be broken."""
    with h5py.File(path, "w", libver=OLD) as file:
        file.attrs["framework"] = "any"
        for layer in range(6):
            weight = file.create_dataset(f"model/layers.{layer}/weight", data=np.arange(24, dtype="f4").reshape(4, 6))
            weight.attrs["dtype"] = "F32"
            weight.dims[0].label = "out"
            weight.dims[1].label = "in"
            file[f"model/layers.{layer}/flag"] = np.array([True, False])
        file["complex"] = np.zeros(3, "c8")
        low(file, "bf16", bf16_type(), (4,), data=np.zeros(4, "u2"))
