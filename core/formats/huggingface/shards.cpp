#include "core/formats/huggingface/shards.hpp"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "core/base/text/text_order.hpp"
#include "core/formats/huggingface/folder.hpp"

namespace reshard::huggingface {
namespace {

using safetensors::shown;
using Positions = std::vector<std::size_t>;

/// huggingface_hub's split (docs/formats/huggingface.md, rule 20): an oversized tensor is a file of
/// its own, placed before the one under construction, which stays open.
std::vector<Positions> split_greedily(Positions const& chosen, std::span<TensorSpec const> tensors,
                                      std::uint64_t largest_shard_bytes) {
  std::vector<Positions> groups;
  Positions current;
  std::uint64_t current_bytes = 0;
  for (std::size_t const i : chosen) {
    std::uint64_t const bytes = safetensors::tensor_bytes(tensors[i]);
    if (bytes > largest_shard_bytes) {
      groups.push_back({i});
      continue;
    }
    if (bytes > largest_shard_bytes - current_bytes) {
      groups.push_back(std::move(current));
      current = {};
      current_bytes = 0;
    }
    current.push_back(i);
    current_bytes += bytes;
  }
  if (!current.empty() || groups.empty()) groups.push_back(std::move(current));
  return groups;
}

/// The tensors of a job, and how their files are laid out.
struct Laid {
  std::span<TensorSpec const> tensors;
  DataLayout data_layout = DataLayout::usual;
  ReferenceWeights* reference = nullptr;
  std::span<FileMetadata const> metadata = {};

  Metadata metadata_of(std::string const& file) const {
    std::vector<std::string> lost;
    return huggingface::metadata_of(metadata, file, lost);
  }
};

/// Loaders ask for the entry "format".
Metadata with_format(Metadata metadata) {
  if (std::ranges::none_of(metadata, [](auto const& entry) { return entry.first == "format"; }))
    metadata.emplace_back("format", "pt");
  return metadata;
}

safetensors::FilePlan plan_of(std::string const& name, std::span<TensorSpec const> members,
                              Laid const& laid) {
  auto const known = laid.reference != nullptr ? laid.reference->take_header(name) : std::nullopt;
  Metadata metadata = laid.metadata_of(name);
  if (!known)
    return safetensors::plan_file(members, with_format(std::move(metadata)), laid.data_layout);
  auto const header = std::as_bytes(std::span(known->bytes));
  if (laid.data_layout == DataLayout::usual)
    if (auto same = safetensors::plan_file_like(header, known->file_bytes, members))
      return *std::move(same);
  // The reference's own entries count before those of the source.
  Metadata const own = safetensors::parse_header(header, known->file_bytes, name).metadata;
  std::erase_if(metadata, [&](auto const& entry) {
    return std::ranges::find(own, entry.first, &Metadata::value_type::first) != own.end();
  });
  metadata.insert(metadata.begin(), own.begin(), own.end());
  return safetensors::plan_file(members, with_format(std::move(metadata)), laid.data_layout);
}

ShardFile shard_of(std::string name, Positions chosen, Laid const& laid) {
  std::vector<TensorSpec> members;
  members.reserve(chosen.size());
  for (std::size_t const i : chosen) members.push_back(laid.tensors[i]);
  try {
    safetensors::FilePlan plan = plan_of(name, members, laid);
    return {std::move(name), std::move(chosen), std::move(plan)};
  } catch (Error const& error) {
    throw error.in(name);
  }
}

void append_numbered(std::vector<ShardFile>& shards, std::vector<Positions> groups,
                     std::string_view stem, Laid const& laid) {
  std::size_t const count = groups.size();
  for (std::size_t k = 0; k < count; ++k)
    shards.push_back(shard_of(fmt::format("{}-{:05}-of-{:05}.safetensors", stem, k + 1, count),
                              std::move(groups[k]), laid));
}

std::string single_name(std::string_view stem) { return fmt::format("{}.safetensors", stem); }

/// "model-added", or "model-added2" … when the reference, itself written by us, has such files
/// already.
std::string free_stem(std::map<std::string, Positions> const& files) {
  for (int n = 1;; ++n) {
    std::string const stem = n == 1 ? "model-added" : fmt::format("model-added{}", n);
    if (std::ranges::none_of(files,
                             [&](auto const& file) { return file.first.starts_with(stem + "-"); }))
      return stem;
  }
}

/// Rule 22.
std::vector<ShardFile> shards_like(WeightMap const& reference, Laid const& laid,
                                   std::uint64_t largest_shard_bytes, std::string_view stem) {
  std::span const tensors = laid.tensors;
  std::unordered_map<SharedText, Positions*> chosen_of;
  std::map<std::string, Positions> files;
  for (auto const& [tensor, file] : reference) {
    auto const known = files.find(file);
    if (known != files.end()) {
      chosen_of.emplace(tensor, &known->second);
      continue;
    }
    std::string const problem = shard_name_problem(file);
    if (!problem.empty())
      fail(
          ErrorKind::source,
          "reference layout, tensor '{}': the file name '{}' {}, expected the name of a *.safetensors file. Correct the index.",
          shown(tensor), shown(file), problem);
    chosen_of.emplace(tensor, &files[file]);
  }
  Positions added;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    auto const found = chosen_of.find(tensors[i].name);
    (found == chosen_of.end() ? added : *found->second).push_back(i);
  }
  std::vector<ShardFile> shards;
  for (auto const& [name, chosen] : files)
    if (!chosen.empty()) shards.push_back(shard_of(name, chosen, laid));
  // An index of other names, such as Mistral's, says nothing of these tensors.
  if (shards.empty() && !added.empty())
    return plan_shards(tensors, largest_shard_bytes, laid.data_layout, laid.metadata, stem);
  if (!added.empty())
    append_numbered(shards, split_greedily(added, tensors, largest_shard_bytes), free_stem(files),
                    laid);
  return shards;
}

/// transformers sorts the members of every level.
Json sorted(Json value) {
  if (auto* members = value.members()) {
    std::ranges::sort(*members, {},
                      [](auto const& member) -> std::string const& { return member.first; });
    for (auto& [key, inner] : *members) inner = sorted(std::move(inner));
  } else if (auto* items = value.items()) {
    for (Json& item : *items) item = sorted(std::move(item));
  }
  return value;
}

/// Rule 24.
Json index_metadata(std::span<TensorSpec const> tensors, Json const& reference) {
  std::uint64_t bytes = 0;
  std::uint64_t elements = 0;
  for (TensorSpec const& tensor : tensors) {
    bytes = checked_add(bytes, safetensors::tensor_bytes(tensor), ErrorKind::usage, "total_size");
    elements +=
        static_cast<std::uint64_t>(checked_volume(tensor.shape, ErrorKind::usage, tensor.name));
  }
  Json metadata = reference.members() != nullptr ? reference : Json::object();
  metadata.set("total_size", bytes);
  if (metadata.find("total_parameters") != nullptr) metadata.set("total_parameters", elements);
  return sorted(std::move(metadata));
}

}  // namespace

std::vector<ShardFile> plan_shards(std::span<TensorSpec const> tensors,
                                   std::uint64_t largest_shard_bytes, ReferenceWeights& reference,
                                   DataLayout data_layout, std::span<FileMetadata const> metadata,
                                   std::string_view stem) {
  Laid const laid{tensors, data_layout, &reference, metadata};
  if (!reference.weight_map().empty())
    return shards_like(reference.weight_map(), laid, largest_shard_bytes, stem);
  return plan_shards(tensors, largest_shard_bytes, data_layout, metadata, stem);
}

std::vector<ShardFile> plan_shards(std::span<TensorSpec const> tensors,
                                   std::uint64_t largest_shard_bytes, DataLayout data_layout,
                                   std::span<FileMetadata const> metadata, std::string_view stem) {
  Laid const laid{tensors, data_layout, nullptr, metadata};
  Positions all(tensors.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  std::vector<Positions> groups = split_greedily(all, tensors, largest_shard_bytes);
  std::vector<ShardFile> shards;
  if (groups.size() == 1)
    shards.push_back(shard_of(single_name(stem), std::move(groups.front()), laid));
  else
    append_numbered(shards, std::move(groups), stem, laid);
  return shards;
}

bool needs_index(std::span<ShardFile const> shards, std::string_view stem) {
  return shards.size() != 1 || shards.front().name != single_name(stem);
}

std::string index_json(std::span<ShardFile const> shards, std::span<TensorSpec const> tensors,
                       Json const& reference_metadata) {
  std::vector<std::pair<std::string_view, std::string_view>> places;  // tensor, file
  places.reserve(tensors.size());
  for (ShardFile const& shard : shards)
    for (std::size_t const i : shard.tensors) places.emplace_back(tensors[i].name, shard.name);
  Json::Object index;
  index.emplace_back("metadata", index_metadata(tensors, reference_metadata));
  index.emplace_back("weight_map", Json::object());
  // Tensors are too many for a Json of each: they follow where the empty object ends.
  constexpr std::string_view end = "}\n}";
  std::string text = Json(std::move(index)).dump(2);
  text.resize(text.size() - end.size());
  std::size_t number = 0;
  for (std::uint32_t const i :
       text_order(places.size(), [&](std::size_t p) { return places[p].first; })) {
    text += number++ == 0 ? "\n    " : ",\n    ";
    append_json_quoted(text, places[i].first);
    text += ": ";
    append_json_quoted(text, places[i].second);
  }
  if (number > 0) text += "\n  ";
  return (text += end) += "\n";
}

}  // namespace reshard::huggingface
