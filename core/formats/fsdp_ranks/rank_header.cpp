#include "core/formats/fsdp_ranks/rank_header.hpp"

#include <algorithm>
#include <map>

#include "core/base/error.hpp"
#include "core/base/hash/crc32.hpp"
#include "core/base/text/text.hpp"
#include "core/formats/megatron/headers/shard.hpp"
#include "core/formats/megatron/mcore/mapping_size.hpp"

namespace reshard::fsdp_ranks {
namespace {

using pickle::Document;
using pickle::Kind;
using pickle::no_node;
using pickle::Node;
using pickle::NodeId;

constexpr std::uint64_t most_block_bytes = std::uint64_t{4} << 20;
constexpr std::string_view step_word = "step";
constexpr std::string_view members_field = "params";
constexpr std::string_view names_field = "param_names";

class Reader {
 public:
  explicit Reader(File const& file)
      : file_(file),
        torch_(read_torch_file(file)),
        document_(torch_.document),
        path_(file.path().string()),
        name_(*parse_rank_name(file.path().filename().string())),
        tensors_(file, torch_, name_.rank) {
    check_name();
  }

  RankHeader read() {
    if (document_.root == no_node || !megatron::mapping_size(document_, document_.root))
      refuse("holds no dict of tensors. It is not a rank's state dict, or damaged: restore it");
    if (name_.kind == RankName::Kind::model)
      read_model();
    else
      read_optimizer();
    header_.form.meshes = tensors_.meshes();
    header_.places = tensors_.places();
    header_.file_bytes = file_.size_bytes();
    std::vector<FileTensor const*> all;
    for (auto const& parts : header_.parts)
      for (HeldPart const& part : parts) all.push_back(&part.tensor);
    header_.records = megatron::records_with(torch_, all);
    add_sums(all);
    return std::move(header_);
  }

 private:
  /// Adds sums of parts that do not fill their record, whose CRC-32 is not checked elsewhere.
  void add_sums(std::vector<FileTensor const*> const& parts) {
    std::map<std::size_t, std::vector<PartSum>> by_record;
    for (FileTensor const* part : parts) {
      auto const after = std::ranges::upper_bound(header_.records, part->offset_bytes, {},
                                                  &StorageRecord::offset_bytes);
      if (part->size_bytes == 0 || after == header_.records.begin()) continue;
      StorageRecord const& record = *(after - 1);
      bool const inside =
          part->offset_bytes + part->size_bytes <= record.offset_bytes + record.size_bytes;
      if (!record.crc32 || !inside || record.size_bytes == part->size_bytes) continue;
      auto& sums = by_record[static_cast<std::size_t>(after - 1 - header_.records.begin())];
      if (part->strides.empty()) sums.push_back({part->offset_bytes, part->size_bytes, 0});
    }
    for (auto& [at, sums] : by_record) read_record(header_.records[at], sums);
    std::ranges::sort(header_.sums, {}, &PartSum::offset_bytes);
  }

  /// Reads a record once, however many parts it has. Parts that lie over each other get no sums:
  /// a hostile file may have very many.
  void read_record(StorageRecord const& record, std::vector<PartSum>& sums) {
    auto const place = [](PartSum const& sum) {
      return std::pair(sum.offset_bytes, sum.size_bytes);
    };
    std::ranges::sort(sums, {}, place);
    auto const again = std::ranges::unique(sums, {}, place);  // a tensor under two names
    sums.erase(again.begin(), again.end());
    for (std::size_t i = 1; i < sums.size(); ++i)
      if (sums[i - 1].offset_bytes + sums[i - 1].size_bytes > sums[i].offset_bytes) sums.clear();
    std::uint32_t all = 0;
    std::size_t first = 0;
    std::vector<std::byte> block(std::min(record.size_bytes, most_block_bytes));
    for (std::uint64_t done = 0; done < record.size_bytes; done += block.size()) {
      block.resize(std::min<std::uint64_t>(block.size(), record.size_bytes - done));
      std::uint64_t const begin = record.offset_bytes + done;
      std::uint64_t const end = begin + block.size();
      file_.read_at(begin, block);
      all = crc32(block, all);
      for (std::size_t i = first; i < sums.size() && sums[i].offset_bytes < end; ++i) {
        std::uint64_t const part_end = sums[i].offset_bytes + sums[i].size_bytes;
        std::uint64_t const from = std::max(sums[i].offset_bytes, begin);
        std::uint64_t const bytes = std::min(part_end, end) - from;
        sums[i].crc32 = crc32(std::span(block).subspan(from - begin, bytes), sums[i].crc32);
        if (part_end <= end) first = i + 1;
      }
    }
    if (all != *record.crc32 && header_.damage.empty())
      header_.damage = fmt::format(
          "{}: the record at {} has the CRC-32 0x{:08x}, and 0x{:08x} is recorded: the file is "
          "damaged",
          path_, record.offset_bytes, all, *record.crc32);
    header_.sums.insert(header_.sums.end(), sums.begin(), sums.end());
  }

  [[noreturn]] void refuse(std::string_view why) const {
    fail(ErrorKind::source, "{}: {}.", path_, why);
  }

  /// torch.save names the folder in its archive after the file. Other names are ignored: files may
  /// be renamed.
  void check_name() const {
    auto const inside = parse_rank_name(torch_.archive + ".pt");
    if (!inside || *inside == name_) return;
    fail(ErrorKind::source,
         "{}: was saved as {}.pt, by the name in its archive. Files of ranks were exchanged or "
         "copied over each other: give each its name, or restore them from the original.",
         path_, torch_.archive);
  }

  bool add(NodeId value, std::string name) {
    auto held = tensors_.read(value, std::move(name));
    if (!held) return false;
    header_.form.tensors.push_back(std::move(held->form));
    header_.parts.push_back(std::move(held->parts));
    return true;
  }

  void read_model() {
    for (auto const& [name, value] : document_.members(document_.root))
      if (!add(value, name) && document_.at(value).kind != Kind::none)
        header_.form.others.push_back(name);
    if (header_.form.tensors.empty()) refuse("holds no tensor. Restore it from the original");
  }

  /// Keys and values of a dict, whatever its keys are.
  std::vector<NodeId> const& entries(NodeId dict) const {
    Node const& node = document_.at(dict);
    return node.kind == Kind::dict ? node.items : node.pairs;
  }

  /// A number, or a name.
  std::string key_of(NodeId id) const {
    Node const& node = document_.at(id);
    if (node.kind == Kind::integer) return std::to_string(node.integer);
    if (node.kind == Kind::string) return node.text;
    refuse("has a parameter in its state that is neither a number nor a name. Restore it");
  }

  void read_optimizer() {
    NodeId const state = document_.find(document_.root, "state");
    NodeId const groups = document_.find(document_.root, "param_groups");
    if (state == no_node || groups == no_node || document_.at(groups).kind != Kind::list ||
        !megatron::mapping_size(document_, state))
      refuse(
          "has no 'state' and no 'param_groups'. It is not the state of a torch.optim "
          "optimizer, or damaged: restore it");
    std::vector<NodeId> const& all = entries(state);
    for (std::size_t i = 0; i + 1 < all.size(); i += 2) add_state(key_of(all[i]), all[i + 1]);
    read_groups(groups);
  }

  void add_state(std::string const& parameter, NodeId slots) {
    if (!megatron::mapping_size(document_, slots))
      refuse(fmt::format("the state of parameter {} is no dict of tensors. Restore it", parameter));
    for (auto const& [slot, value] : document_.members(slots)) {
      if (add(value, fmt::format("{}.{}", parameter, slot))) {
        if (slot == step_word) note_step(parameter, number_of(header_.parts.back()));
        continue;
      }
      Node const& node = document_.at(value);
      if (slot == step_word && node.kind == Kind::integer)
        note_step(parameter, static_cast<double>(node.integer));
      else if (slot == step_word && node.kind == Kind::real)
        note_step(parameter, node.real);
      else if (node.kind != Kind::none)
        header_.form.others.push_back(fmt::format("{}.{}", parameter, slot));
    }
  }

  std::optional<double> number_of(std::vector<HeldPart> const& parts) const {
    return parts.size() == 1 ? number_in(file_, parts.front().tensor) : std::nullopt;
  }

  void note_step(std::string const& parameter, std::optional<double> steps) {
    if (!steps) return;
    if (!header_.steps) {
      header_.steps = steps;
      first_ = parameter;
    } else if (*header_.steps != *steps && header_.fault.empty()) {
      header_.fault = fmt::format(
          "parameter {} has done {} steps and parameter {} {}, but Megatron counts one step for "
          "all. Parameters were trained for different numbers of steps, or the files are of two "
          "saves",
          first_, *header_.steps, parameter, *steps);
    }
  }

  void read_groups(NodeId groups) {
    Document settings;
    settings.root = settings.add_list();
    for (NodeId const group : document_.at(groups).items) {
      header_.form.members.emplace_back();
      header_.form.names.emplace_back();
      for (NodeId const one : list(group, members_field))
        header_.form.members.back().push_back(key_of(one));
      for (NodeId const one : list(group, names_field))
        if (document_.at(one).kind == Kind::string)
          header_.form.names.back().push_back(document_.at(one).text);
      NodeId const copy = settings.add_dict();
      for (auto const& [field, value] : document_.members(group))
        if (field != members_field && field != names_field)
          if (NodeId const setting = setting_of(value, settings); setting != no_node)
            settings.set(copy, field, setting);
      settings.at(settings.root).items.push_back(copy);
    }
    if (!header_.form.members.empty() && settings.tensors.empty())
      header_.form.settings = pickle::dump(settings);
  }

  /// A learning rate may be a tensor of one number.
  NodeId setting_of(NodeId value, Document& settings) {
    if (auto const held = tensors_.read(value, "param_groups")) {
      auto const number = number_of(held->parts);
      return number ? settings.add_real(*number) : no_node;
    }
    return settings.add_copy(document_, value);
  }

  std::vector<NodeId> list(NodeId group, std::string_view field) const {
    NodeId const id = document_.find(group, field);
    if (id == no_node) return {};
    Node const& node = document_.at(id);
    return node.kind == Kind::list || node.kind == Kind::tuple ? node.items : std::vector<NodeId>();
  }

  File const& file_;
  TorchFile torch_;
  Document const& document_;
  std::string path_;
  RankName name_;
  HeldTensors tensors_;
  RankHeader header_;
  std::string first_;  ///< the parameter whose steps were noted first
};

}  // namespace

RankHeader read_rank_header(File const& file) { return Reader(file).read(); }

}  // namespace reshard::fsdp_ranks
