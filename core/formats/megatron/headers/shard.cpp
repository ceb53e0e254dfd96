#include "core/formats/megatron/headers/shard.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "core/base/error.hpp"
#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/megatron/mcore/args.hpp"
#include "core/formats/megatron/mcore/mapping_size.hpp"

namespace reshard::megatron {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::no_node;
using pickle::Node;
using pickle::NodeId;

constexpr std::string_view extra_suffix = "_extra_state";
constexpr double supported_version = 3.0;
/// More virtual stages than any model has layers; also keeps "model99999999999" from being a
/// number.
constexpr std::size_t most_chunks = 10'000;

/// "model" is 0, "model3" is 3; nullopt for other keys.
std::optional<std::size_t> chunk_number(std::string_view key) {
  constexpr std::string_view word = "model";
  if (!key.starts_with(word)) return std::nullopt;
  key.remove_prefix(word.size());
  if (key.empty()) return 0;
  std::size_t number = 0;
  auto const [end, error] = std::from_chars(key.data(), key.data() + key.size(), number);
  if (error != std::errc() || end != key.data() + key.size() || number >= most_chunks)
    return std::nullopt;
  return number;
}

/// The payload of an io.BytesIO: the first item of its state, or its one argument.
std::uint64_t bytes_io_size(Document const& document, Node const& node) {
  for (NodeId const id : {node.state, node.arguments}) {
    if (id == no_node || document.at(id).kind != Kind::tuple || document.at(id).items.empty())
      continue;
    Node const& first = document.at(document.at(id).items[0]);
    return first.kind == Kind::bytes ? first.text.size() : 0;
  }
  return 0;
}

/// Reads one file; knows its path for errors.
class HeaderReader {
 public:
  HeaderReader(File const& file, TorchFile const& torch)
      : torch_(torch), document_(torch.document), path_(file.path().string()) {}

  ShardHeader read() && {
    if (document_.root == no_node || !is_mapping(document_.root))
      fail(ErrorKind::source,
           "{}: expected a dict with 'args' and 'model', found another value. This is not a "
           "Megatron checkpoint file.",
           path_);
    for (auto const& [key, node] : document_.members(document_.root)) take(key, node);
    check_version();
    read_chunks();
    add_records();
    return std::move(header_);
  }

 private:
  /// The storages that the tensors of the model lie in.
  void add_records() {
    std::vector<FileTensor const*> tensors;
    for (ChunkTable const& chunk : header_.chunks) {
      for (FileTensor const& tensor : chunk.tensors) tensors.push_back(&tensor);
      for (ExtraEntry const& extra : chunk.extras)
        if (extra.kind == ExtraKind::uint8_tensor) tensors.push_back(&extra.tensor);
    }
    header_.records = records_with(torch_, tensors);
  }

  bool is_mapping(NodeId id) const { return mapping_size(document_, id).has_value(); }

  /// Attributes are in an object's dict; anything else could not be edited later.
  bool is_namespace(NodeId id) const {
    Node const& node = document_.at(id);
    if (node.kind != Kind::reduce) return is_mapping(id);
    return node.state == no_node || document_.at(node.state).kind == Kind::dict;
  }

  void take(std::string const& key, NodeId node) {
    Node const& value = document_.at(node);
    if (key == "args") {
      if (value.kind == Kind::none) return;
      if (!is_namespace(node)) fail_key(key, "an argparse.Namespace");
      header_.args = read_args(node);
    } else if (key == "checkpoint_version") {
      if (value.kind != Kind::real && value.kind != Kind::integer) fail_key(key, "a number");
      header_.checkpoint_version =
          value.kind == Kind::real ? value.real : static_cast<double>(value.integer);
    } else if (key == "iteration") {
      if (value.kind != Kind::integer) fail_key(key, "an integer");
      header_.iteration = value.integer;
    } else if (auto const number = chunk_number(key)) {
      auto const form = key == "model" ? Numbered::no : Numbered::yes;
      if (!chunk_nodes_.emplace(*number, node).second ||
          (numbered_ != Numbered::unknown && numbered_ != form))
        fail_twice();
      numbered_ = form;
    } else if (key == "optimizer") {
      header_.has_optimizer = value.kind != Kind::none;
    } else if (key == "rng_state") {
      header_.has_rng = value.kind != Kind::none;
    } else {
      header_.has_rng =
          header_.has_rng || key == "random_rng_state";  // before 2022 the states stood at the top
      header_.other_keys.push_back(key);
    }
  }

  Json read_args(NodeId node) const {
    try {
      return args_as_json(document_, node);
    } catch (Error const& error) {
      throw error.in(path_);
    }
  }

  [[noreturn]] void fail_key(std::string_view key, std::string_view expected) const {
    fail(
        ErrorKind::source,
        "{}: '{}': expected {}, found another value. The file is damaged or was not written by Megatron.",
        path_, key, expected);
  }

  [[noreturn]] void fail_twice() const {
    fail(ErrorKind::source,
         "{}: has 'model' beside a numbered 'model0' or the same number twice; expected one "
         "'model', or only 'model0', 'model1', …. The file was changed by hand: keep one form.",
         path_);
  }

  void check_version() const {
    if (header_.checkpoint_version == supported_version) return;
    fail(
        ErrorKind::source,
        "{}: checkpoint_version is {}, expected {:.1f}{}. Load and save it once with a current Megatron.",
        path_, header_.checkpoint_version, supported_version,
        header_.checkpoint_version < supported_version
            ? ": older files order the rows of QKV or name sizes differently"
            : "");
  }

  void read_chunks() {
    if (chunk_nodes_.empty())
      fail(ErrorKind::source,
           "{}: expected a key 'model' or 'model0', found {}. The file holds no weights.", path_,
           listed(header_.other_keys, 6));
    std::size_t expected = 0;
    for (auto const& [number, node] : chunk_nodes_) {
      if (number != expected)
        fail(ErrorKind::source,
             "{}: 'model{}' is missing, while 'model{}' is there. The file is damaged.", path_,
             expected, number);
      auto const name =
          numbered_ == Numbered::yes ? fmt::format("model{}", number) : std::string("model");
      header_.chunks.push_back(read_chunk(name, node));
      ++expected;
    }
  }

  ChunkTable read_chunk(std::string const& chunk, NodeId id) {
    if (!is_mapping(id)) fail_key(chunk, "a dict of tensors");
    auto const members = document_.members(id);
    if (auto const size = mapping_size(document_, id); members.size() != size)
      fail(ErrorKind::source,
           "{}: '{}' has {}, of which {} are distinct strings. The file is damaged or was not "
           "written by Megatron.",
           path_, chunk, counted(*size, "key"), members.size());
    ChunkTable table;
    for (auto const& [key, value] : members) add_entry(table, chunk, key, value);
    return table;
  }

  void add_entry(ChunkTable& table, std::string const& chunk, std::string const& key, NodeId id) {
    Node const& node = document_.at(id);
    if (key.ends_with(extra_suffix)) {
      table.extras.push_back(extra(key, id, static_cast<std::uint32_t>(table.tensors.size())));
      return;
    }
    switch (node.kind) {
      case Kind::tensor:
        table.tensors.push_back(file_tensor(torch_, document_.tensors[node.index], key));
        return;
      case Kind::none:
      case Kind::boolean:
      case Kind::integer:
      case Kind::big_integer:
      case Kind::real:
      case Kind::string:
      case Kind::bytes: header_.unplaced.push_back(key); return;
      default: break;
    }
    if (is_mapping(id) && (key == "language_model" || key == "word_embeddings_for_head"))
      fail(ErrorKind::source,
           "{}: {}['{}'] is a nested dict: a model from before Megatron Core "
           "(--use-legacy-models). Convert it to a Core model with Megatron's tools first.",
           path_, chunk, key);
    fail(ErrorKind::source,
         "{}: {}['{}']: expected a tensor, found {}. Remove the key or save plain tensors.", path_,
         chunk, key, described(id));
  }

  std::string described(NodeId id) const {
    auto const [module, name] = document_.class_of(id);
    if (!module.empty()) return fmt::format("{}.{}", module, name);
    if (document_.at(id).kind == Kind::dict) return "a dict";
    // An object made by a method of its class, getattr(Float8Tensor, "_make_in_reduce_ex")(…).
    Node const& made = document_.at(id);
    if (made.kind != Kind::reduce) return "another Python value";
    Node const& method = document_.at(made.callable);
    if (method.kind != Kind::reduce || method.arguments == no_node ||
        document_.at(method.arguments).items.empty())
      return "another Python value";
    auto const [its_module, its_name] =
        document_.class_of(document_.at(method.arguments).items.front());
    if (its_module.empty()) return "another Python value";
    bool const quantised = its_module.starts_with("transformer_engine");
    return fmt::format("{}.{}{}", its_module, its_name,
                       quantised ? ", a quantised tensor of Transformer Engine. Save torch_dist "
                                   "instead, which holds it in BF16"
                                 : "");
  }

  ExtraEntry extra(std::string const& key, NodeId id, std::uint32_t tensors_before) const {
    ExtraEntry entry = extra_entry(torch_, id, key);
    entry.tensors_before = tensors_before;
    return entry;
  }

  enum class Numbered { unknown, no, yes };

  TorchFile const& torch_;
  Document const& document_;
  std::string path_;
  ShardHeader header_;
  std::map<std::size_t, NodeId> chunk_nodes_;
  Numbered numbered_ = Numbered::unknown;
};

}  // namespace

ShardHeader shard_header(File const& file, TorchFile const& torch) {
  return HeaderReader(file, torch).read();
}

ShardHeader read_shard_header(File const& file) {
  return shard_header(file, read_torch_file(file));
}

std::vector<StorageRecord> records_with(TorchFile const& torch,
                                        std::span<FileTensor const* const> tensors) {
  std::vector<StorageRecord> records;  // no two begin at one place
  records.reserve(torch.storages.size());
  for (auto const& [key, record] : torch.storages)
    if (record.crc32 && record.size_bytes > 0) records.push_back(record);
  std::ranges::sort(records, {}, &StorageRecord::offset_bytes);
  std::vector<bool> wanted(records.size());
  for (FileTensor const* tensor : tensors) {
    auto const after =
        std::ranges::upper_bound(records, tensor->offset_bytes, {}, &StorageRecord::offset_bytes);
    if (tensor->size_bytes > 0 && after != records.begin())
      wanted[static_cast<std::size_t>(after - records.begin()) - 1] = true;
  }
  std::size_t kept = 0;
  for (std::size_t r = 0; r < records.size(); ++r)
    if (wanted[r]) records[kept++] = records[r];
  records.resize(kept);
  return records;
}

ExtraEntry extra_entry(TorchFile const& torch, NodeId id, std::string const& key) {
  Document const& document = torch.document;
  Node const& node = document.at(id);
  ExtraEntry entry{
      .key = key, .kind = ExtraKind::other, .tensors_before = 0, .tensor = {}, .size_bytes = 0};
  if (node.kind == Kind::none) entry.kind = ExtraKind::none;
  if (node.kind == Kind::tensor && document.tensors[node.index].dtype == DType::u8) {
    entry.kind = ExtraKind::uint8_tensor;
    entry.tensor = file_tensor(torch, document.tensors[node.index], key);
    entry.size_bytes = entry.tensor.size_bytes;
  }
  auto const [module, name] = document.class_of(id);
  if (node.kind == Kind::reduce && name == "BytesIO" && (module == "_io" || module == "io")) {
    entry.kind = ExtraKind::bytes_io;
    entry.size_bytes = bytes_io_size(document, node);
  }
  return entry;
}

}  // namespace reshard::megatron
