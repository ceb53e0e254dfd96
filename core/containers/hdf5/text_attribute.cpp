#include "core/containers/hdf5/text_attribute.hpp"

#include <algorithm>
#include <cstring>

#include "core/containers/hdf5/child/check_found.hpp"
#include "core/containers/hdf5/names.hpp"

namespace reshard::hdf5 {
namespace {

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(
      text, [](char letter) { return static_cast<unsigned char>(letter) < 0x80U; });
}

Handle string_type(Calls const& calls, std::size_t bytes, bool ascii) {
  Handle type = calls.take(H5Tcopy(H5T_C_S1), H5Tclose, "copy a type");
  calls.done(H5Tset_size(type.id(), bytes), "set the size of a type");
  if (bytes != H5T_VARIABLE)
    calls.done(H5Tset_strpad(type.id(), H5T_STR_NULLPAD), "set the padding of a type");
  if (!ascii) calls.done(H5Tset_cset(type.id(), H5T_CSET_UTF8), "set the characters of a type");
  return type;
}

Handle fixed_type(Calls const& calls, std::string_view value) {
  return string_type(calls, std::max<std::size_t>(value.size(), 1), is_ascii(value));
}

char const* bytes_of(std::string_view value) { return value.empty() ? "" : value.data(); }

/// The strings of an attribute of variable length. Frees libhdf5's copies.
std::vector<std::string> variable_texts(Calls const& calls, hid_t attribute, hid_t type,
                                        hid_t space, std::size_t count) {
  std::vector<char*> pointers(count, nullptr);
  calls.done(H5Aread(attribute, type, pointers.data()), "read an attribute");
  std::vector<std::string> texts;
  for (char const* const pointer : pointers) texts.emplace_back(pointer == nullptr ? "" : pointer);
  calls.done(H5Dvlen_reclaim(type, space, H5P_DEFAULT, pointers.data()),
             "free the strings of an attribute");
  return texts;
}

std::vector<std::string> fixed_texts(Calls const& calls, hid_t attribute, hid_t type,
                                     std::size_t count) {
  std::size_t const size = H5Tget_size(type);
  if (size > largest_value_bytes || size * count > largest_value_bytes)
    fail(
        calls.kind,
        "{}, '{}': an attribute has {} strings of {} bytes, more than {} bytes in all. The file is damaged.",
        calls.place, shown(calls.object), count, size, largest_value_bytes);
  std::string bytes(size * count, '\0');
  calls.done(H5Aread(attribute, type, bytes.data()), "read an attribute");
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < count; ++i) {
    std::string text = bytes.substr(i * size, size);
    text.resize(std::min(text.find('\0'), text.size()));
    if (H5Tget_strpad(type) == H5T_STR_SPACEPAD) text.resize(text.find_last_not_of(' ') + 1);
    texts.push_back(std::move(text));
  }
  return texts;
}

/// All strings of an attribute; nullopt if there is none, or if it has other values or more than
/// `most`.
std::optional<std::vector<std::string>> read_texts(Calls const& calls, hid_t object,
                                                   char const* name, std::size_t most) {
  if (calls.done(H5Aexists(object, name), "find an attribute") == 0) return std::nullopt;
  Handle const attribute =
      calls.take(H5Aopen(object, name, H5P_DEFAULT), H5Aclose, "open an attribute");
  Handle const type =
      calls.take(H5Aget_type(attribute.id()), H5Tclose, "read the type of an attribute");
  Handle const space =
      calls.take(H5Aget_space(attribute.id()), H5Sclose, "read the dataspace of an attribute");
  auto const count = static_cast<std::uint64_t>(
      calls.done(H5Sget_simple_extent_npoints(space.id()), "count the elements of an attribute"));
  if (H5Tget_class(type.id()) != H5T_STRING || count == 0 || count > most) return std::nullopt;
  bool const variable =
      calls.done(H5Tis_variable_str(type.id()), "read the type of an attribute") > 0;
  return variable ? variable_texts(calls, attribute.id(), type.id(), space.id(), count)
                  : fixed_texts(calls, attribute.id(), type.id(), count);
}

}  // namespace

void create_text(Calls const& calls, hid_t object, char const* name, std::string_view value) {
  Handle const type = fixed_type(calls, value);
  Handle const space = calls.take(H5Screate(H5S_SCALAR), H5Sclose, "create a scalar dataspace");
  hid_t const id = H5Acreate2(object, name, type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT);
  Handle const attribute = calls.take(id, H5Aclose, "create an attribute");
  calls.done(H5Awrite(attribute.id(), type.id(), bytes_of(value)), "write an attribute");
}

void create_labels(Calls const& calls, hid_t dataset, std::span<std::string const> labels) {
  hsize_t const count = labels.size();
  std::vector<char const*> pointers;
  for (std::string const& label : labels) pointers.push_back(label.c_str());
  Handle const type = string_type(calls, H5T_VARIABLE, true);
  Handle const space = calls.take(H5Screate_simple(1, &count, nullptr), H5Sclose,
                                  "create a "
                                  "dataspace");
  hid_t const id =
      H5Acreate2(dataset, labels_attribute, type.id(), space.id(), H5P_DEFAULT, H5P_DEFAULT);
  Handle const attribute = calls.take(id, H5Aclose, "create the labels");
  calls.done(H5Awrite(attribute.id(), type.id(), pointers.data()), "write the labels");
}

std::optional<std::string> read_text(Calls const& calls, hid_t object, char const* name) {
  auto texts = read_texts(calls, object, name, 1);
  if (!texts) return std::nullopt;
  return std::move(texts->front());
}

std::optional<std::vector<std::string>> read_labels(Calls const& calls, hid_t dataset) {
  return read_texts(calls, dataset, labels_attribute, largest_rank);
}

std::vector<std::string> attribute_names(Calls const& calls, hid_t object, std::size_t most) {
  struct State {
    std::vector<std::string> names;
    std::size_t most;
  } state = {{}, most};
  auto const add = [](hid_t, char const* name, H5A_info_t const*, void* data) -> herr_t {
    auto& into = *static_cast<State*>(data);
    into.names.emplace_back(name);
    return into.names.size() > into.most ? 1 : 0;
  };
  calls.done(H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, add, &state),
             "list the attributes");
  if (state.names.size() > most)
    fail(calls.kind, "{}: more than {} attributes on one object. The file is damaged.", calls.place,
         most);
  std::ranges::sort(state.names);
  return std::move(state.names);
}

}  // namespace reshard::hdf5
