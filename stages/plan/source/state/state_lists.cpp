#include "stages/plan/source/state/state_lists.hpp"

#include <algorithm>

#include <fmt/ranges.h>

#include "core/base/tables/counted.hpp"
#include "stages/plan/source/catalog/restride.hpp"

namespace reshard {
namespace {

/// A parameter of the rank, in order of registration.
struct Parameter {
  StoredName const* name = nullptr;
  PipelineChunk const* chunk = nullptr;
  std::vector<Index> shape;
};

class ListReader {
 public:
  ListReader(Checkpoint const& source, StateList const& list, Side const& side,
             MeshPlace const& place, SourceModel& read)
      : source_(source), list_(list), side_(side), place_(place), read_(read) {}

  void run(std::vector<Parameter> const& parameters) {
    std::vector<std::vector<Parameter const*>> members(list_.groups.size());
    for (Parameter const& parameter : parameters)
      members[group_of(parameter)].push_back(&parameter);
    for (std::size_t g = 0; g < members.size(); ++g) {
      StateList::Group const& group = list_.groups[g];
      if (group.members.size() != members[g].size())
        fail(ErrorKind::source,
             "{}: group {} of optimizer {} has {}, and {} of the model fall into it. "
             "Where parameters were frozen, name them in model.frozen. A run's own groups "
             "cannot be resharded: set source.optimizer = \"drop\".",
             list_.where, g, list_.chain, counted(group.members.size(), "parameter"),
             members[g].size());
      for (std::size_t m = 0; m < group.members.size(); ++m) add(*members[g][m], group.members[m]);
    }
  }

 private:
  std::size_t group_of(Parameter const& parameter) const {
    bool const decays = megatron::decays(parameter.name->name, parameter.shape, read_.facts.args);
    bool const decoupled = megatron::may_be_decoupled(parameter.name->name) &&
                           std::ranges::any_of(list_.groups, &StateList::Group::decoupled);
    auto const found = std::ranges::find_if(list_.groups, [&](StateList::Group const& group) {
      return group.decays == decays && group.decoupled == decoupled;
    });
    if (found != list_.groups.end()) return static_cast<std::size_t>(found - list_.groups.begin());
    fail(ErrorKind::source,
         "{}: optimizer {} has no group {} weight decay, which '{}' belongs to. {} this version "
         "cannot reshard from files of ranks: save the checkpoint as torch_dist, or set "
         "source.optimizer = \"drop\".",
         list_.where, list_.chain, decays ? "with" : "without", parameter.name->name,
         whose_groups());
  }

  /// Muon and Lion are optimizers of several kinds beside each other.
  std::string whose_groups() const {
    Json const stated = fact(read_.facts.args, "optimizer");
    if (stated.text() == nullptr || *stated.text() == "adam" || *stated.text() == "sgd")
      return "The run had its own groups, which";
    return fmt::format("args.optimizer is '{}', whose groups", *stated.text());
  }

  void add(Parameter const& parameter, std::vector<std::size_t> const& states) {
    for (std::size_t s = 0; s < states.size(); ++s) {
      if (states[s] == no_tensor) continue;
      StoredTensor const& tensor = source_.stored.tensors[states[s]];
      if (tensor.shape != parameter.shape)
        fail(ErrorKind::source,
             "{}: {} has the shape ({}), and '{}', which the order of parameters gives it, has "
             "({}). The run had another order or its own groups, which this version cannot "
             "reshard: set source.optimizer = \"drop\".",
             list_.where, tensor.name, fmt::join(tensor.shape, ", "), parameter.name->name,
             fmt::join(parameter.shape, ", "));
      add_tensor(parameter, tensor, SlotId(s + 1));
    }
  }

  void add_tensor(Parameter const& parameter, StoredTensor const& tensor, SlotId slot) {
    SidePlace const place{place_, parameter.chunk};
    if (tensor.chunk_count == 1) {
      std::vector<Piece> pieces = side_.pieces(*parameter.name, place);
      auto const strides = source_.stored.strides.find(tensor.first_chunk);
      if (strides != source_.stored.strides.end()) restride(pieces, tensor.shape, strides->second);
      add_pieces(parameter, tensor, tensor.first_chunk, slot, std::move(pieces));
    } else {
      for (std::size_t c = tensor.first_chunk; c < tensor.first_chunk + tensor.chunk_count; ++c)
        add_rows(parameter, tensor, c, slot);
    }
    for (TensorId const held : side_.tensors(parameter.name->entry))
      read_.model->set_exists(read_.model->in_slot(held, slot), true);
  }

  /// A chunk of whole rows of a tensor of several.
  void add_rows(Parameter const& parameter, StoredTensor const& tensor, std::size_t c,
                SlotId slot) {
    StoredChunk const& chunk = source_.stored.chunks[c];
    auto const sizes = source_.stored.sizes(chunk);
    bool const rows = !sizes.empty() &&
                      std::ranges::equal(sizes.subspan(1), std::span(parameter.shape).subspan(1));
    if (!rows || source_.stored.strides.contains(c))
      fail(ErrorKind::source,
           "{}: {} is not cut into whole rows, as torch's FSDP2 cuts it. This version cannot "
           "reshard it: set source.optimizer = \"drop\".",
           list_.where, tensor.name);
    Index elements = 1;
    for (Index const extent : sizes.subspan(1)) elements *= extent;
    Index const begin = source_.stored.offsets(chunk).front() * elements;
    SidePlace const place{place_, parameter.chunk};
    add_pieces(parameter, tensor, c, slot,
               side_.flat_pieces(*parameter.name, place, begin, begin + sizes.front() * elements));
  }

  void add_pieces(Parameter const& parameter, StoredTensor const& tensor, std::size_t chunk,
                  SlotId slot, std::vector<Piece> pieces) {
    for (Piece& piece : pieces) piece.tensor = read_.model->in_slot(piece.tensor, slot);
    read_.stored.catalog.add(
        {source_.stored.chunks[chunk].item.file, source_.stored.payload_offset_bytes(chunk),
         tensor.dtype, tensor.name},
        std::move(pieces), parameter.name->copy);
  }

  Checkpoint const& source_;
  StateList const& list_;
  Side const& side_;
  MeshPlace const& place_;
  SourceModel& read_;
};

}  // namespace

void add_state_list(Checkpoint const& source, StateList const& list,
                    std::span<megatron::BufferShare const> rank,
                    megatron::BufferShares const& shares, Side const& side, MeshPlace const& place,
                    SourceModel& read) {
  std::vector<Parameter> parameters;
  for (megatron::BufferShare const& share : rank)
    for (megatron::RankParameter const& one : share.parameters) {
      StoredName const& name = shares.name(share, one);
      parameters.push_back({&name, &shares.chunk(share),
                            side.layout(name.entry, {place, &shares.chunk(share)}).file_shape});
    }
  ListReader(source, list, side, place, read).run(parameters);
}

}  // namespace reshard
