#include "core/formats/huggingface/folder.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <system_error>

#include "core/base/files/file.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/member_file.hpp"
#include "core/base/text/json_root.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/huggingface/config/config.hpp"
#include "core/formats/huggingface/shards.hpp"

namespace reshard::huggingface {
namespace {

namespace fs = std::filesystem;
using safetensors::shown;

/// Weights of other formats, and names that we write ourselves: never sidecars
/// (docs/formats/huggingface.md, rule 17).
constexpr std::array not_sidecars = {"*.distcp",
                                     "*.safetensors",
                                     "*.index.json",
                                     "*.bin",
                                     "*.pt",
                                     "*.pth",
                                     "*.ckpt",
                                     "*.gguf",
                                     "reshard.json",
                                     "*.h5",
                                     "*.msgpack",
                                     "*.onnx",
                                     "*.npz",
                                     "config.json",
                                     "manifest.json",
                                     "sha256sums",
                                     "safetensors_metadata.json"};

/// A folder with the same weights in the form in which Meta trains.
constexpr std::string_view meta_weights = "original";

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool may_be_sidecar(std::string const& name) {
  if (name.starts_with('.')) return false;
  std::string const folded = lower(name);
  return std::ranges::none_of(not_sidecars,
                              [&](char const* pattern) { return matches_glob(pattern, folded); });
}

std::vector<std::string> matching(std::vector<std::string> const& names,
                                  bool (*wanted)(std::string const&)) {
  std::vector<std::string> found;
  std::ranges::copy_if(names, std::back_inserter(found), wanted);
  return found;
}

/// Names that are the same text are one text, so its address tells.
void check_names(WeightMap const& map, std::string const& place) {
  std::vector<std::string const*> names;
  names.reserve(map.size());
  for (auto const& [tensor, file] : map) names.push_back(&tensor.text());
  std::ranges::sort(names);
  auto const twice = std::ranges::adjacent_find(names);
  if (twice != names.end())
    fail(ErrorKind::source, "{}: the key {} appears twice in one JSON object. Keep one of them.",
         place, json_quoted(**twice));
}

/// Rules 6 and 7.
void add_weight_map(Folder& folder, JsonRoot const& index, std::string const& place) {
  std::set<std::string> files;
  SharedText last;  // most tensors are in the file of the one before
  (void)index.entries("weight_map", [&](std::string const& tensor, Json const& value) {
    std::string const* const file = value.text();
    if (file == nullptr)
      fail(ErrorKind::source,
           "{}, tensor '{}': the file is not a string. The index is damaged: download it again.",
           place, shown(tensor));
    std::string const problem = shard_name_problem(*file);
    if (!problem.empty())
      fail(
          ErrorKind::source,
          "{}, tensor '{}': the file name '{}' {}, expected the name of a *.safetensors file in this folder. {}",
          place, shown(tensor), shown(*file), problem,
          "Do not use this checkpoint unless you know why.");
    if (last != *file) {
      last = *file;
      files.insert(*file);
    }
    folder.weight_map.emplace_back(tensor, last);
  });
  if (folder.weight_map.empty())
    fail(
        ErrorKind::source,
        "{}: \"weight_map\" names no tensor, expected an object of tensor names and files. Download the index again.",
        place);
  check_names(folder.weight_map, place);
  folder.files.assign(files.begin(), files.end());
}

void read_index(Folder& folder, std::string_view name = index_name) {
  fs::path const path = readable_member(folder.path, name);
  std::string const place = path.string();
  std::string const text = read_text_file(path, largest_index_bytes);
  constexpr std::array<std::string_view, 1> map = {"weight_map"};
  JsonRoot const index(text, place, map, '{');
  if (index.members().find("weight_map") == nullptr)
    fail(ErrorKind::source, "{}: has no \"weight_map\". The index is damaged: download it again.",
         place);
  Json const* const metadata = index.members().find("metadata");
  if (metadata != nullptr && !metadata->is_null()) {
    if (metadata->members() == nullptr)
      fail(ErrorKind::source,
           "{}: \"metadata\" is not an object. The index is damaged: download it again.", place);
    folder.index_metadata = *metadata;
  }
  add_weight_map(folder, index, place);
  folder.indexed = true;
}

/// Rules 8 and 9. All missing files in one message: they are downloaded together.
void check_files(Folder const& folder) {
  std::vector<MemberKind> const kinds = member_kinds(folder.path, folder.files);
  std::vector<std::string> missing;
  for (std::size_t f = 0; f < kinds.size(); ++f)
    if (kinds[f] == MemberKind::missing) missing.push_back(shown(folder.files[f].string()));
  if (!missing.empty())
    fail(ErrorKind::source,
         "{}: {} of the {} files that the index names are missing: {}. Download them again.",
         folder.path.string(), missing.size(), folder.files.size(), listed(missing));
  for (std::size_t f = 0; f < kinds.size(); ++f)
    readable_member(folder.path, folder.files[f], kinds[f]);
}

/// Rule 3: Mistral's own files are read with params.json.
[[noreturn]] void fail_without_weights(Folder const& folder,
                                       std::vector<std::string> const& names) {
  auto const own = std::ranges::find_if(names, is_consolidated);
  if (own == names.end())
    fail(ErrorKind::source,
         "{}: holds neither {} nor a *.safetensors file. Name the folder with the weights.",
         folder.path.string(), index_name);
  fail(ErrorKind::source,
       "{}: holds {}, weights under Mistral's own names, and no {}, which describes their model. "
       "Fetch that file, too, or use the model's Hugging Face files.",
       folder.path.string(), shown(*own), params_name);
}

/// Rules 2 to 4.
void find_single_file(Folder& folder, std::vector<std::string> const& names) {
  std::vector<std::string> const found = matching(names, is_single_candidate);
  if (std::ranges::find(found, single_file_name) != found.end()) {
    folder.files = {single_file_name};
  } else if (found.size() == 1) {
    folder.files = {found.front()};
  } else if (found.size() > 1) {
    fail(ErrorKind::source,
         "{}: {} *.safetensors files ({}) and no {}, which maps each tensor to its file. Download "
         "the index too, or set source.index = \"rebuild\".",
         folder.path.string(), found.size(), listed(found, 4), index_name);
  } else if (auto const pickled = matching(names, is_pickled); !pickled.empty()) {
    fail(
        ErrorKind::source,
        "{}: the weights are pickled ({}), expected *.safetensors. Save the model once with save_pretrained, then run again.",
        folder.path.string(), listed(pickled, 4));
  } else {
    fail_without_weights(folder, names);
  }
}

void read_config(Folder& folder, std::vector<std::string> const& names) {
  if (!std::ranges::binary_search(names, config_name)) return;
  fs::path const path = readable_member(folder.path, config_name);
  folder.config_text = read_text_file(path, largest_config_bytes);
  folder.config = parse_config(folder.config_text, path.string());
}

void read_metadata(Folder& folder, std::vector<std::string> const& names) {
  if (!std::ranges::binary_search(names, metadata_file_name)) return;
  fs::path const path = readable_member(folder.path, metadata_file_name);
  folder.file_metadata = parse_metadata(read_text_file(path, largest_index_bytes), path.string());
}

/// A folder of peft, which has an adapter's weights and no model's.
bool is_adapter_folder(std::vector<std::string> const& names) {
  auto const has = [&](std::string_view name) {
    return std::ranges::find(names, name) != names.end();
  };
  return !has(index_name) && !has(single_file_name) &&
         (has(adapter_index_name) || has(adapter_file_name));
}

void read_adapter_config(Folder& folder, std::vector<std::string> const& names) {
  if (!std::ranges::binary_search(names, adapter_config_name)) return;
  fs::path const path = readable_member(folder.path, adapter_config_name);
  folder.adapter_text = read_text_file(path, largest_config_bytes);
  folder.adapter = parse_config(folder.adapter_text, path.string());
}

void open_adapter(Folder& folder, std::vector<std::string> const& names) {
  if (std::ranges::binary_search(names, adapter_index_name))
    read_index(folder, adapter_index_name);
  else
    folder.files = {adapter_file_name};
  read_adapter_config(folder, names);
  if (folder.adapter.is_null())
    fail(ErrorKind::source,
         "{}: has {} and no {}, which states how the adapter is scaled. Download that file too.",
         folder.path.string(), folder.files.front().string(), adapter_config_name);
}

/// Why a file is not carried along; "" when it is.
std::string sidecar_problem(fs::path const& path) {
  return seen("sidecar", path, [&] {
    std::error_code reason;
    std::uintmax_t const bytes = fs::file_size(path, reason);
    if (reason) return reason.message();
    return bytes <= largest_sidecar_bytes ? std::string() : human_bytes(bytes);
  });
}

/// Rules 16 to 18. A link out of the folder is left out, not refused: no weight depends on it, but
/// its target must not reach the output.
void find_sidecars(Folder& folder, std::vector<std::string> const& names) {
  std::vector<std::string> folders;
  for (std::string const& name : names) {
    if (!may_be_sidecar(name)) continue;
    MemberKind const kind = member_kind(folder.path, name);
    if (kind == MemberKind::not_regular && name != meta_weights && sees_folder(folder.path / name))
      folders.push_back(name + "/");
    if (kind == MemberKind::outside)
      folder.warnings.push_back(fmt::format(
          "{}: a symbolic link that points outside the folder, not copied", shown(name)));
    if (kind != MemberKind::file) continue;
    std::string const problem = valid_utf8(name) == name ? sidecar_problem(folder.path / name)
                                                         : "has a name that is not UTF-8";
    if (problem.empty())
      folder.sidecars.push_back(name);
    else
      folder.warnings.push_back(fmt::format("{}: {}, not copied", shown(name), problem));
  }
  if (!folders.empty())
    folder.warnings.push_back(
        fmt::format("{}: folders beside the weights are not copied", listed(folders, 6)));
}

/// Rule 5. Stale shards of an earlier download: said, never loaded.
/// `candidates`: files whose names are those of weights.
void warn_of_unindexed_files(Folder& folder, std::vector<std::string> const& candidates,
                             std::string_view index) {
  for (std::string const& name : candidates)
    if (!std::ranges::binary_search(folder.files, fs::path(name))) {
      folder.warnings.push_back(fmt::format("{}: weights that {} does not name, not read",
                                            shown(name),
                                            folder.weight_map.empty() ? single_file_name : index));
      if (!folder.weight_map.empty()) folder.unindexed.push_back(name);
    }
}

}  // namespace

std::string shard_name_problem(std::string_view name) {
  constexpr std::string_view suffix = ".safetensors";
  if (name.empty()) return "is empty";
  if (name.size() > 255) return fmt::format("has {} bytes, more than 255", name.size());
  for (char const forbidden : {'/', '\\'})
    if (name.find(forbidden) != std::string_view::npos) return fmt::format("has a '{}'", forbidden);
  if (std::ranges::any_of(name, [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
    return "has a control character";
  if (name.starts_with('.')) return "begins with a dot";
  if (!name.ends_with(suffix)) return "does not end in .safetensors";
  return {};
}

bool has_consolidated(fs::path const& path) {
  auto const names = member_names(path);
  return std::ranges::find(names, params_name) != names.end() &&
         std::ranges::any_of(names, [](std::string const& name) {
           return name == consolidated_index_name || is_consolidated(name);
         });
}

bool has_consolidated_alone(fs::path const& path) {
  return has_consolidated(path) &&
         std::ranges::none_of(member_names(path), [](std::string const& name) {
           return name == index_name || is_single_candidate(name) || is_pickled(name);
         });
}

bool looks_like_folder(fs::path const& path) {
  if (!sees_folder(path)) return false;
  auto const names = member_names(path);
  return std::ranges::any_of(names, [](std::string const& name) {
    return name == index_name || shard_name_problem(name).empty() || is_pickled(name);
  });
}

Folder open_folder(fs::path const& path, bool by_headers) {
  Folder folder;
  folder.path = path;
  std::vector<std::string> const names = member_names(path);
  bool const adapter = is_adapter_folder(names);
  if (adapter) {
    open_adapter(folder, names);
  } else if (by_headers) {
    folder.files = numbered_files(path, matching(names, is_single_candidate));
  } else if (std::ranges::binary_search(names, index_name)) {
    read_index(folder);
  } else {
    find_single_file(folder, names);
  }
  check_files(folder);
  read_config(folder, names);
  find_sidecars(folder, names);
  if (adapter) std::erase(folder.sidecars, std::string(adapter_config_name));
  warn_of_unindexed_files(folder, matching(names, is_single_candidate), index_name);
  return folder;
}

Folder open_consolidated(fs::path const& path, bool by_headers) {
  Folder folder;
  folder.path = path;
  std::vector<std::string> const names = member_names(path);
  if (by_headers) {
    folder.files = numbered_files(path, matching(names, is_consolidated));
  } else if (std::ranges::binary_search(names, consolidated_index_name)) {
    read_index(folder, consolidated_index_name);
    folder.indexed = false;  // it does not travel: it is of Mistral's names
  } else {
    std::vector<std::string> const found = matching(names, is_consolidated);
    if (found.size() != 1)
      fail(ErrorKind::source,
           "{}: {} consolidated*.safetensors files and no {}, which maps each tensor to its file. "
           "Fetch the index too, or set source.index = \"rebuild\".",
           path.string(), found.size(), consolidated_index_name);
    folder.files = {found.front()};
  }
  check_files(folder);
  read_config(folder, names);
  find_sidecars(folder, names);
  warn_of_unindexed_files(folder, matching(names, is_consolidated), consolidated_index_name);
  return folder;
}

Folder open_reference(fs::path const& path) {
  if (!sees_folder(path))
    fail(ErrorKind::usage,
         "{}: is not a directory. Name a folder with a config.json as target.reference.",
         path.string());
  Folder folder;
  folder.path = path;
  std::vector<std::string> const names = member_names(path);
  if (std::ranges::binary_search(names, index_name)) read_index(folder);
  read_config(folder, names);
  bool const adapter = is_adapter_folder(names);
  if (folder.config.is_null() && !adapter)
    fail(ErrorKind::usage,
         "{}: has no config.json. Name a folder of this model as target.reference.", path.string());
  read_metadata(folder, names);
  find_sidecars(folder, names);
  if (path.filename() != carried_name && !adapter) return folder;
  read_adapter_config(folder, names);
  if (!folder.adapter.is_null()) std::erase(folder.sidecars, std::string(adapter_config_name));
  return folder;
}

Folder open_sidecars(fs::path const& path) {
  Folder folder;
  folder.path = path;
  find_sidecars(folder, member_names(path));
  return folder;
}

std::optional<Folder> find_carried(std::vector<fs::path> const& folders) {
  for (fs::path const& folder : folders)
    if (fs::path const carried = folder / carried_name; sees_file(carried / config_name))
      return open_reference(carried);
  return std::nullopt;
}

void copy_sidecar(Folder const& folder, std::string const& name, fs::path const& target_folder) {
  constexpr std::size_t block_bytes = std::size_t{4} << 20;
  File const from = File::open_for_reading(readable_member(folder.path, name));
  File to = File::create(target_folder / name);
  std::vector<std::byte> block(std::min<std::size_t>(block_bytes, from.size_bytes()));
  for (std::uint64_t at = 0; !block.empty();) {
    std::size_t const got = from.read_some_at(at, block);
    to.write_at(at, std::span(block).first(got));
    at += got;
    if (got < block.size()) break;
  }
  to.sync();
  to.close();
}

}  // namespace reshard::huggingface
