#include "core/formats/fsdp_ranks/flat_states.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "core/base/error.hpp"
#include "core/formats/fsdp_ranks/named_states.hpp"
#include "core/layout/pieces/flat_boxes.hpp"

namespace reshard::fsdp_ranks {
namespace {

using Kind = TensorForm::Kind;

constexpr std::string_view step_word = "step";

/// The states of one parameter on one rank, by slot.
using Slots = std::map<std::string, FileTensor const*>;

/// By rank, and by the key of the parameter.
std::vector<std::unordered_map<std::string, Slots>> slots_of(RankFiles const& files) {
  std::vector<std::unordered_map<std::string, Slots>> result(files.ranks.size());
  for (std::size_t rank = 0; rank < result.size(); ++rank) {
    auto const& tensors = files.form(rank).tensors;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      auto const [key, slot] = parts_of_state(tensors[t].name);
      if (files.ranks[rank].parts[t].size() == 1)
        result[rank][key].emplace(slot, &files.ranks[rank].parts[t].front().tensor);
    }
  }
  return result;
}

Index elements_of(std::vector<Index> const& shape) {
  return checked_volume(shape, ErrorKind::source, "a weight");
}

/// "model.layers.3." of "model.layers.3.mlp.up_proj.weight"; "" outside of a block.
std::string block_of(std::string const& name) {
  for (std::size_t begin = 0, dot = name.find('.'); dot != std::string::npos;
       begin = dot + 1, dot = name.find('.', begin)) {
    std::string_view const part = std::string_view(name).substr(begin, dot - begin);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos)
      return name.substr(0, dot + 1);
  }
  return "";
}

class Finder {
 public:
  Finder(RankFiles const& optimizer, RankFiles const& model, std::span<RankTensor const> weights)
      : optimizer_(optimizer), model_(model), slots_(slots_of(optimizer)) {
    for (RankTensor const& one : weights)
      if (one.form->kind != Kind::plain) weights_.push_back(&one);
    for (auto const& group : optimizer.form(0).members)
      keys_.insert(keys_.end(), group.begin(), group.end());
  }

  std::optional<std::vector<FlatWeight>> run() {
    if (optimizer_.form(0).members.size() != 1 || !find_shards()) return std::nullopt;
    for (std::string const& key : keys_) {
      lengths_.emplace_back();
      for (std::size_t const rank : shards_) lengths_.back().push_back(length(rank, key));
    }
    for (bool const tied : {false, true}) {
      if (tied) leave_out_second_names();
      if (auto found = by_weight()) return found;
      if (auto found = by_block()) return found;
    }
    return std::nullopt;
  }

 private:
  /// The first rank of each part of a vector.
  bool find_shards() {
    RankTensor const& one = *weights_.front();
    if (one.form->kind == Kind::boxed) {
      for (std::size_t rank = 0; rank < model_.ranks.size(); ++rank) shards_.push_back(rank);
      return true;
    }
    std::optional<std::size_t> cut;
    for (std::size_t axis = 0; axis < one.form->placements.size(); ++axis) {
      if (one.form->placements[axis].kind == Placement::Kind::replicate) continue;
      if (cut || one.form->placements[axis] != Placement{Placement::Kind::shard, 0, 1})
        return false;
      cut = axis;
    }
    if (!cut) return false;
    std::map<Index, std::size_t> first;
    for (auto const& [rank, t] : one.holders)
      first.try_emplace(model_.ranks[rank].places[model_.form(rank).tensors[t].mesh][*cut], rank);
    for (auto const& [place, rank] : first) shards_.push_back(rank);
    return std::ssize(shards_) == one.mesh->sizes[*cut];
  }

  /// Elements of the vectors under a key; 0 where a rank has none.
  Index length(std::size_t rank, std::string const& key) const {
    auto const found = slots_[rank].find(key);
    if (found == slots_[rank].end()) return 0;
    for (auto const& [slot, tensor] : found->second)
      if (slot != step_word && tensor->shape.size() == 1) return tensor->shape.front();
    return 0;
  }

  /// Tied weights were saved twice: with equal shapes and bytes.
  void leave_out_second_names() {
    std::set<std::pair<std::vector<Index>, std::uint32_t>> seen;
    std::erase_if(weights_, [&](RankTensor const* one) {
      auto const crc32 = first_crc32(*one, model_);
      return crc32 && !seen.emplace(one->form->shape, *crc32).second;
    });
  }

  /// use_orig_params: each weight has a key, and the ranks have its elements one after the other.
  std::optional<std::vector<FlatWeight>> by_weight() const {
    if (keys_.size() != weights_.size()) return std::nullopt;
    std::vector<FlatWeight> result;
    for (std::size_t k = 0; k < keys_.size(); ++k) {
      FlatWeight flat{weights_[k], keys_[k], {}};
      Index begin = 0;
      for (std::size_t s = 0; s < shards_.size(); ++s) {
        Index const size = lengths_[k][s];
        if (size > 0) flat.pieces.push_back({shards_[s], begin, begin + size, 0});
        begin += size;
      }
      if (begin != 0 && begin != elements_of(weights_[k]->form->shape)) return std::nullopt;
      result.push_back(std::move(flat));
    }
    return result;
  }

  /// The module around all blocks first, then the blocks in their order.
  std::optional<std::vector<FlatWeight>> by_block() const {
    std::map<std::string, std::size_t> number;
    std::vector<std::vector<RankTensor const*>> units(1);
    for (RankTensor const* one : weights_) {
      std::string const block = block_of(one->form->name);
      if (block.empty()) {
        units.front().push_back(one);
        continue;
      }
      auto const [found, is_new] = number.try_emplace(block, units.size());
      if (is_new) units.emplace_back();
      units[found->second].push_back(one);
    }
    if (units.front().empty()) units.erase(units.begin());
    if (units.size() != keys_.size()) return std::nullopt;
    std::vector<FlatWeight> result;
    for (std::size_t u = 0; u < units.size(); ++u)
      if (!add_unit(units[u], u, result)) return std::nullopt;
    return result;
  }

  bool add_unit(std::vector<RankTensor const*> const& unit, std::size_t u,
                std::vector<FlatWeight>& result) const {
    Index const each = lengths_[u].front();
    if (std::ranges::any_of(lengths_[u], [&](Index one) { return one != each; })) return false;
    auto const ranks = std::ssize(shards_);
    Index total = 0;
    for (RankTensor const* one : unit) total += elements_of(one->form->shape);
    if (each != 0 && (total + ranks - 1) / ranks != each) return false;
    Index begin = 0;
    for (RankTensor const* one : unit) {
      FlatWeight flat{one, keys_[u], {}};
      Index const end = begin + elements_of(one->form->shape);
      for (Index s = 0; each != 0 && s < ranks; ++s) {
        Index const first = std::max(begin, s * each);
        Index const last = std::min(end, (s + 1) * each);
        if (first < last)
          flat.pieces.push_back({shards_[static_cast<std::size_t>(s)], first - begin, last - begin,
                                 first - s * each});
      }
      begin = end;
      result.push_back(std::move(flat));
    }
    return true;
  }

  RankFiles const& optimizer_;
  RankFiles const& model_;
  std::vector<std::unordered_map<std::string, Slots>> slots_;
  std::vector<RankTensor const*> weights_;  ///< those that are cut
  std::vector<std::string> keys_;
  std::vector<std::size_t> shards_;
  std::vector<std::vector<Index>> lengths_;  ///< by key and shard
};

/// Adds the states of one weight of which a rank has a piece.
void add_states(FlatWeight const& flat,
                std::vector<std::unordered_map<std::string, Slots>> const& slots,
                RankFiles const& optimizer, Checkpoint& checkpoint) {
  StoredTable& stored = checkpoint.stored;
  std::vector<Slots> held;
  for (FlatPiece const& piece : flat.pieces) held.push_back(slots[piece.rank].at(flat.key));
  auto const file_of = [&](FlatPiece const& piece) {
    return narrow<std::uint32_t>(optimizer.first_file + piece.rank);
  };
  std::vector<Index> const& shape = flat.weight->form->shape;
  for (auto const& [slot, first] : held.front()) {
    std::string name = fmt::format("optimizer.state.{}.{}", flat.weight->form->name, slot);
    if (first->shape.empty()) {
      stored.add_whole(std::move(name), first->dtype, first->shape,
                       {file_of(flat.pieces.front()), first->offset_bytes, first->size_bytes});
      continue;
    }
    StoredTensor tensor{name, first->dtype, shape, narrow<std::uint32_t>(stored.chunks.size()), 0};
    auto const bytes = static_cast<std::uint64_t>(bits(first->dtype) / 8);
    for (std::size_t p = 0; p < flat.pieces.size(); ++p) {
      FlatPiece const& piece = flat.pieces[p];
      auto const found = held[p].find(slot);
      FileTensor const* vector = found == held[p].end() ? nullptr : found->second;
      if (vector == nullptr || vector->dtype != first->dtype || vector->shape.size() != 1 ||
          !vector->strides.empty() || vector->shape.front() < piece.at + piece.end - piece.begin)
        fail(ErrorKind::source,
             "{}: holds no {} elements of '{}' for {}, as the files of other ranks do. The file is "
             "damaged, or of another save: restore it.",
             checkpoint.files[file_of(piece)].string(), piece.end - piece.begin, slot,
             flat.weight->form->name);
      for (FlatBox const& box : flat_boxes(shape, piece.begin, piece.end)) {
        std::vector<Index> sizes;
        Index elements = 1;
        for (std::size_t d = 0; d < shape.size(); ++d) {
          sizes.push_back(box.box.end[d] - box.box.begin[d]);
          elements *= sizes.back();
        }
        stored.chunks.push_back(
            {stored.lists.add(box.box.begin),
             stored.lists.add(sizes),
             {file_of(piece),
              vector->offset_bytes + static_cast<std::uint64_t>(piece.at + box.offset) * bytes,
              static_cast<std::uint64_t>(elements) * bytes}});
        ++tensor.chunk_count;
      }
    }
    stored.tensors.push_back(std::move(tensor));
  }
}

}  // namespace

bool has_flat_states(RankFiles const& optimizer, std::span<RankTensor const> weights) {
  bool const cut = std::ranges::any_of(
      weights, [](RankTensor const& one) { return one.form->kind != Kind::plain; });
  if (!cut) return false;
  for (FileForm const& form : optimizer.forms)
    for (TensorForm const& state : form.tensors) {
      bool const vector = state.kind == Kind::plain && state.shape.size() == 1;
      bool const of_weight = std::ranges::any_of(weights, [&](RankTensor const& weight) {
        return weight.form->kind == Kind::plain && weight.form->shape == state.shape;
      });
      if (vector && !of_weight) return true;
    }
  return false;
}

std::optional<std::vector<FlatWeight>> flat_weights(RankFiles const& optimizer,
                                                    RankFiles const& model,
                                                    std::span<RankTensor const> weights) {
  return Finder(optimizer, model, weights).run();
}

void add_flat_states(std::span<FlatWeight const> weights, RankFiles const& optimizer,
                     Checkpoint& checkpoint) {
  auto const slots = slots_of(optimizer);
  for (FlatWeight const& one : weights)
    if (!one.pieces.empty()) add_states(one, slots, optimizer, checkpoint);
}

}  // namespace reshard::fsdp_ranks
