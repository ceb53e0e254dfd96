#include "core/containers/hdf5/walk.hpp"

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include <fmt/ranges.h>

#include "core/containers/hdf5/child/check_found.hpp"
#include "core/containers/hdf5/file_types.hpp"
#include "core/containers/hdf5/layout.hpp"
#include "core/containers/hdf5/names.hpp"
#include "core/containers/hdf5/text_attribute.hpp"

namespace reshard::hdf5 {
namespace {

constexpr std::size_t most_links = 4'000'000;
constexpr std::size_t deepest_group = 64;
constexpr std::size_t most_root_attributes = 4096;
constexpr std::string_view damaged = "The file is damaged: compare it with the original.";
constexpr std::string_view store_again =
    "Write it again as a plain dataset: contiguous, in this file, without filters.";

struct Link {
  std::string name;
  H5L_type_t type;
  haddr_t address;  ///< of a hard link
};

struct Group {
  std::string path;  ///< "" for the root
  haddr_t address;
  std::size_t depth;
};

class Walk {
 public:
  Walk(hid_t file, std::string_view place) : file_(file), calls_{ErrorKind::source, place} {}

  Found run() {
    auto const format = read_text(calls_, file_, format_attribute);
    found_.container = format == format_value;
    if (found_.container) {
      check_head();
      container();
    } else {
      anybodys_file();
    }
    for (std::string const& key : attribute_names(calls_, file_, most_root_attributes)) {
      if (found_.container && std::ranges::find(own_attributes, key) != own_attributes.end())
        continue;
      auto value = read_text(calls_.at(key), file_, key.c_str());
      if (value && (found_.container ||
                    (is_line(key) && is_text(*value) && value->size() <= largest_value_bytes)))
        found_.attributes.emplace_back(key, std::move(*value));
    }
    return std::move(found_);
  }

 private:
  [[noreturn]] void refuse(std::string_view name, std::string_view what,
                           std::string_view next) const {
    fail(ErrorKind::source, "{}, '{}': {}. {}", calls_.place, shown(name), what, next);
  }

  void check_head() const {
    auto const version = read_text(calls_, file_, version_attribute);
    if (version != version_value)
      fail(ErrorKind::source,
           "{}: its format_version is '{}', this program reads '{}'. Use a newer reshard.",
           calls_.place, shown(version.value_or("")), version_value);
    std::uint8_t complete = 0;
    if (calls_.done(H5Aexists(file_, complete_attribute), "find 'complete'") > 0) {
      Handle const attribute =
          calls_.take(H5Aopen(file_, complete_attribute, H5P_DEFAULT), H5Aclose, "open 'complete'");
      Handle const type =
          calls_.take(H5Aget_type(attribute.id()), H5Tclose, "read the type of 'complete'");
      Handle const space =
          calls_.take(H5Aget_space(attribute.id()), H5Sclose, "read the dataspace of 'complete'");
      bool const is_byte = dtype_of_type(type.id()).dtype == DType::u8 &&
                           H5Sget_simple_extent_npoints(space.id()) == 1;
      if (is_byte) calls_.done(H5Aread(attribute.id(), type.id(), &complete), "read 'complete'");
    }
    if (complete != 1)
      fail(ErrorKind::source,
           "{}: its 'complete' is {}, expected 1: the run that wrote it did not complete. Write it "
           "again.",
           calls_.place, complete);
  }

  void container() {
    for (Link const& link : links_of(file_, "")) {
      check_link(link, "/" + link.name);
      Handle const object = open(link, link.name);
      if ((link.name != tensors_group && link.name != objects_group) ||
          H5Iget_type(object.id()) != H5I_GROUP)
        refuse("/" + link.name, "a container has the groups /tensors and /objects and nothing else",
               damaged);
      members(object.id(), link.name);
    }
  }

  void members(hid_t group, std::string const& path) {
    for (Link const& link : links_of(group, path)) {
      std::string const whole = path + "/" + link.name;
      check_link(link, whole);
      auto name = name_from_link(link.name);
      if (!name) refuse(whole, "a '%' in its name is neither %2F nor %25", damaged);
      Handle const object = open(link, whole);
      if (H5Iget_type(object.id()) != H5I_DATASET) refuse(whole, "it is not a dataset", damaged);
      FoundDataset dataset = read_dataset(object.id(), whole);
      dataset.name = std::move(*name);
      dataset.digest = digest_of(object.id(), whole);
      (path == tensors_group ? found_.tensors : found_.objects).push_back(std::move(dataset));
    }
  }

  void anybodys_file() {
    Handle const root =
        calls_.take(H5Gopen2(file_, "/", H5P_DEFAULT), H5Gclose, "open the root group");
    H5O_info_t info{};
    calls_.done(H5Oget_info2(root.id(), &info, H5O_INFO_BASIC), "read the root group");
    seen_.emplace(info.addr, "/");
    std::vector<Group> open_groups = {{"", info.addr, 0}};
    while (!open_groups.empty()) {
      Group const at = std::move(open_groups.back());
      open_groups.pop_back();
      Handle const group =
          calls_.at(at.path).take(H5Oopen_by_addr(file_, at.address), H5Oclose, "open a group");
      for (Link const& link : links_of(group.id(), at.path)) member(link, at, open_groups);
    }
  }

  void member(Link const& link, Group const& group, std::vector<Group>& open_groups) {
    std::string path = group.path.empty() ? link.name : group.path + "/" + link.name;
    check_link(link, path);
    if (link.name.find('/') != std::string::npos)
      refuse(path, "the name of a link has a '/' in it", damaged);
    if (auto const problem = name_problem(path))
      refuse(path, "the name cannot be used, " + *problem, "Rename it.");
    Handle const object = open(link, path);
    switch (H5Iget_type(object.id())) {
      case H5I_GROUP:
        if (group.depth + 1 > deepest_group)
          refuse(path, fmt::format("it is a group more than {} levels deep", deepest_group),
                 damaged);
        open_groups.push_back({std::move(path), link.address, group.depth + 1});
        return;
      case H5I_DATASET: {
        FoundDataset dataset = read_dataset(object.id(), path);
        dataset.name = std::move(path);
        found_.tensors.push_back(std::move(dataset));
        return;
      }
      default:
        refuse(path, "it is neither a group nor a dataset",
               "Remove it: only tensors are converted.");
    }
  }

  std::vector<Link> links_of(hid_t group, std::string const& path) {
    struct State {
      std::vector<Link> links;
      std::size_t room;
    } state = {{}, most_links - links_};
    auto const add = [](hid_t, char const* name, H5L_info_t const* info, void* data) -> herr_t {
      auto& into = *static_cast<State*>(data);
      into.links.push_back(
          {name, info->type, info->type == H5L_TYPE_HARD ? info->u.address : HADDR_UNDEF});
      return into.links.size() > into.room ? 1 : 0;
    };
    calls_.at(path).done(H5Literate(group, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, add, &state),
                         "list a group");
    if (state.links.size() > state.room)
      refuse(path, fmt::format("the file has more than {} links", most_links), damaged);
    links_ += state.links.size();
    return std::move(state.links);
  }

  void check_link(Link const& link, std::string const& path) {
    constexpr std::string_view next =
        "Links are not followed: replace the link with a copy of the data.";
    if (link.type == H5L_TYPE_SOFT) refuse(path, "it is a soft link", next);
    if (link.type == H5L_TYPE_EXTERNAL) refuse(path, "it is a link to another file", next);
    if (link.type != H5L_TYPE_HARD) refuse(path, "it is a link of an unknown kind", next);
    auto const [first, fresh] = seen_.emplace(link.address, path);
    if (!fresh) refuse(path, fmt::format("it is a hard link to '{}'", shown(first->second)), next);
  }

  Handle open(Link const& link, std::string const& path) const {
    return calls_.at(path).take(H5Oopen_by_addr(file_, link.address), H5Oclose, "open it");
  }

  FoundDataset read_dataset(hid_t dataset, std::string const& path) const {
    Calls const at = calls_.at(path);
    FoundDataset found;
    Handle const type = at.take(H5Dget_type(dataset), H5Tclose, "read the type");
    haddr_t const offset = H5Dget_offset(dataset);
    if (offset == HADDR_UNDEF)
      check_plain(dataset,
                  path);  // before the extent: that of a virtual dataset may open other files
    Handle const space = at.take(H5Dget_space(dataset), H5Sclose, "read the dataspace");
    H5S_class_t const kind = H5Sget_simple_extent_type(space.id());
    if (kind != H5S_SCALAR && kind != H5S_SIMPLE)
      refuse(path, "its dataspace is empty (H5S_NULL): it has no elements", "Leave it out.");
    int const rank =
        at.done(H5Sget_simple_extent_ndims(space.id()), "read the number of dimensions");
    std::vector<hsize_t> extents(static_cast<std::size_t>(rank));
    if (rank > 0)
      at.done(H5Sget_simple_extent_dims(space.id(), extents.data(), nullptr),
              "read the dimensions");
    found.dtype = dtype_of(dataset, type.id(), extents, path);
    auto shape = shape_from_extents(found.dtype, extents);
    if (!shape)
      refuse(path,
             fmt::format("its dimensions are [{}], expected each below 2^63",
                         fmt::join(extents, ", ")),
             damaged);
    found.shape = std::move(*shape);
    bool const empty = std::ranges::find(found.shape, 0) != found.shape.end();
    if (offset == HADDR_UNDEF && !empty)
      refuse(path, "it has no storage: nothing was ever written to it",
             "Write it, or leave it out.");
    found.size_bytes = H5Dget_storage_size(dataset);
    if (!empty) found.offset_bytes = offset;
    read_words(dataset, at, found);
    return found;
  }

  /// Throws the reason for which a dataset has no offset in the file; returns if it has no elements
  /// or was never written.
  void check_plain(hid_t dataset, std::string const& path) const {
    Calls const at = calls_.at(path);
    Handle const properties =
        at.take(H5Dget_create_plist(dataset), H5Pclose, "read the properties");
    H5D_layout_t const layout = H5Pget_layout(properties.id());
    int const filters = at.done(H5Pget_nfilters(properties.id()), "count the filters");
    if (layout == H5D_VIRTUAL)
      refuse(path, "it is a virtual dataset, made of parts of others", store_again);
    if (layout == H5D_CHUNKED)
      refuse(path, fmt::format("it is stored in chunks, with {} filters", filters), store_again);
    if (layout == H5D_COMPACT) refuse(path, "it is stored in its header (compact)", store_again);
    if (layout != H5D_CONTIGUOUS) refuse(path, "its storage is of an unknown kind", store_again);
    if (at.done(H5Pget_external_count(properties.id()), "count the external files") > 0)
      refuse(path, "its bytes are in other files", store_again);
  }

  /// The stored dtype of a container for values of a dtype (docs/formats/hdf5.md, 2).
  static DType carrier_of(DType dtype) {
    bool const bytes = bits(dtype) < 8 || dtype == DType::boolean || dtype == DType::f4_x2 ||
                       name(dtype).starts_with("F8_");
    return bytes ? DType::u8 : dtype;
  }

  /// The attribute `dtype` is the truth where it can be; in a container it must be.
  DType dtype_of(hid_t dataset, hid_t type, std::vector<hsize_t> const& extents,
                 std::string const& path) const {
    auto const word = read_text(calls_.at(path), dataset, dtype_attribute);
    auto const [stored, problem] = dtype_of_type(type);
    bool const ours = found_.container && path.starts_with(tensors_group);
    for (int number = 0; word && number <= static_cast<int>(last_dtype); ++number) {
      auto const dtype = static_cast<DType>(number);
      bool const as_written = name(dtype) == *word && (!ours || stored == carrier_of(dtype));
      if (as_written && carries(type, dtype) && shape_from_extents(dtype, extents)) return dtype;
    }
    if (!stored) refuse(path, problem + ", which is not a tensor", "Convert it, or leave it out.");
    if (ours)
      refuse(path,
             fmt::format("its attribute 'dtype' is '{}', its elements are {} in the file",
                         shown(word.value_or("")), name(*stored)),
             damaged);
    return *stored;
  }

  void read_words(hid_t dataset, Calls const& at, FoundDataset& found) const {
    if (found_.container) found.domain = read_text(at, dataset, domain_attribute).value_or("");
    if (found.shape.empty()) return;
    auto labels = read_labels(at, dataset);
    if (!labels || std::ranges::find(*labels, "") != labels->end()) return;
    found.axes = std::move(*labels);
  }

  std::uint64_t digest_of(hid_t dataset, std::string const& path) const {
    auto const text = read_text(calls_.at(path), dataset, crc64_attribute);
    std::uint64_t digest = 0;
    if (text && text->size() == digest_digits) {
      auto const [end, error] =
          std::from_chars(text->data(), text->data() + text->size(), digest, 16);
      if (error == std::errc{} && end == text->data() + text->size()) return digest;
    }
    refuse(path,
           fmt::format("its attribute 'crc64' is '{}', expected 16 hexadecimal digits",
                       shown(text.value_or(""))),
           damaged);
  }

  hid_t file_;
  Calls calls_;
  Found found_;
  std::size_t links_ = 0;
  std::unordered_map<haddr_t, std::string> seen_;  ///< addresses of objects and their first names
};

}  // namespace

Found walk(std::string const& path, std::string_view place, void (*opened)()) {
  Calls const calls = {ErrorKind::source, place};
  Handle const access = file_access(calls);
  Handle const file =
      calls.take(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()), H5Fclose, "open it");
  opened();
  return Walk(file.id(), place).run();
}

}  // namespace reshard::hdf5
