#include "stages/plan/source/state/flat_states.hpp"

#include <algorithm>
#include <array>
#include <tuple>

#include "core/base/tables/counted.hpp"
#include "core/base/text/text.hpp"
#include "core/containers/torch/torch_types.hpp"
#include "core/formats/format.hpp"
#include "core/formats/megatron/mcore/args.hpp"
#include "core/formats/megatron/mcore/mesh.hpp"
#include "core/formats/megatron/mcore/traits.hpp"
#include "core/formats/megatron/state/buffer_shares.hpp"
#include "core/formats/megatron/state/flat_buffer.hpp"
#include "core/formats/megatron/state/flat_rules.hpp"
#include "stages/plan/source/state/state_lists.hpp"

namespace reshard {
namespace {

using megatron::BufferShare;
using megatron::BufferShares;
using megatron::FlatLayout;
using megatron::FlatParameter;
using megatron::RankParameter;

/// Alignments of parameters in a bucket: since Megatron 0.8, and before.
constexpr std::array<Index, 2> alignments{64, 1};

megatron::MeshSizes sizes_of_args(Json const& args, std::string const& place) {
  if (auto const sharded = megatron::weight_sharding(args))
    fail(
        ErrorKind::source,
        "{}: {}: weights are sharded along one more axis (GTP), and where their optimizer state is "
        "in flat buffers (dp_reshardable) is not known to this version. Save the checkpoint with "
        "--dist-ckpt-optim-fully-reshardable, or set source.optimizer = \"drop\".",
        place, *sharded);
  return megatron::stated_sizes(args, place);
}

bool flag(Json const& args, std::string_view key) {
  Json const value = fact(args, key);
  return value.boolean() != nullptr && *value.boolean();
}

/// How the save's ranks named experts, most likely first: files of torch_dist do not say it.
std::vector<std::string> expert_forms(Checkpoint const& source, SourceModel const& read) {
  if (source.storage == Storage::shares) return {read.facts.traits.form};
  Json const& args = read.facts.args;
  if (flag(args, "moe_use_legacy_grouped_gemm")) return {"flat", "grouped", "sequential"};
  if (flag(args, "moe_grouped_gemm")) return {"grouped", "flat", "sequential"};
  return {"sequential", "grouped", "flat"};
}

class FlatStates {
 public:
  FlatStates(Checkpoint const& source, std::vector<std::string> const& frozen, SourceModel& read)
      : source_(source),
        frozen_(frozen),
        read_(read),
        model_(*read.model),
        sizes_(source.storage == Storage::shares ? megatron::sizes_of(source.shares.mesh)
                                                 : sizes_of_args(read.facts.args, source.place)),
        experts_apart_(megatron::are_experts_apart(sizes_, megatron::release_of(read.facts.args))),
        dense_(read.facts.view.state_tables.empty() ? 0 : 1),
        mesh_(megatron::mesh_of(sizes_)) {
    PipelineSpec spec = megatron::pipeline_spec(read.facts.args, sizes_);
    spec.decoder_layers = count("L");
    spec.mtp_layers = count("M");
    chunks_ = pipeline_chunks(spec);
    for (std::size_t t = 0; t < model_.tensors().size(); ++t)
      named_.push_back(has_state(TensorId(t)));
    for (TensorPieces const& tensor : read.stored.catalog.tensors)
      dtypes_.push_back(
          tensor.empty() ? std::nullopt
                         : std::optional<DType>(read.stored.catalog.blobs[tensor.blob(0)].dtype));
  }

  void run() {
    std::optional<Error> first;
    for (std::string const& form : expert_forms(source_, read_)) {
      try {
        return run(form);
      } catch (Error const& error) {
        if (error.kind() != ErrorKind::source) throw;
        if (!first) first = error;
        if (count("N") == 0) break;
      }
    }
    throw *first;
  }

 private:
  /// A buffer of the file, and what it holds.
  struct Placed {
    FlatBuffer const& buffer;
    BufferShare share;
    FlatLayout layout;
    MeshPlace place;
  };

  int count(char const* word) const {
    Json const value = model_.value(word);
    return value.integer() == nullptr ? 0 : narrow<int>(*value.integer());
  }

  bool has_state(TensorId weight) const {
    if (model_.tensor(weight).slot != SlotId::weight) return false;
    for (std::size_t s = 1; s < model_.slots().size(); ++s)
      if (model_.state_of(weight, SlotId(s))) return true;
    return false;
  }

  /// Whether a buffer may hold its state.
  bool is_left(Side const& side, StoredName const& name) const {
    return !named_[index(side.tensors(name.entry).front())] &&
           std::ranges::none_of(frozen_, [&](std::string const& pattern) {
             return matches_glob(pattern, name.name);
           });
  }

  void run(std::string const& form) {
    Side const side(model_, read_.names.maps.core, side_options(form));
    BufferShares shares({model_, read_.names.maps.core, side, mesh_, chunks_,
                         [&](StoredName const& name) { return weights_dtype(side, name); },
                         experts_apart_,
                         [&](StoredName const& name) { return is_left(side, name); }});
    std::vector<Placed> placed;
    auto const& buffers = read_.facts.view.buffers;
    for (std::size_t b = 0; b < buffers.size();) {
      std::size_t end = b;
      while (end < buffers.size() && same_group(buffers[b], buffers[end])) ++end;
      place_group(std::span(buffers).subspan(b, end - b), shares, placed);
      b = end;
    }
    std::size_t states = 0;
    for (Placed const& one : placed)
      states += one.share.parameters.size() * one.buffer.buckets.front().size();
    read_.stored.catalog.blobs.reserve(read_.stored.catalog.blobs.size() + states);
    for (Placed& one : placed) {
      add(one, side, shares);
      one.layout = {};
      one.share = {};
    }
    for (StateList const& list : read_.facts.view.lists) {
      if (list.chain > most_chains())
        fail(ErrorKind::source,
             "{}: weights are shared among {} optimizers or more, of several kinds such as "
             "Muon and Adam, which this version reads only in torch_dist. Load the checkpoint "
             "in Megatron at the old sizes and save it as torch_dist, or set source.optimizer "
             "= \"drop\".",
             list.where, list.chain + 1);
      MeshPlace const place = place_of(list.chain, list.group);
      auto const rank = shares.parameters(place, narrow<int>(mesh_.coordinate(place, "pp")),
                                          list.chain != dense_);
      add_state_list(source_, list, rank, shares, side, place, read_);
    }
  }

  std::string weights_dtype(Side const& side, StoredName const& name) const {
    auto const& dtype = dtypes_[index(side.tensors(name.entry).front())];
    return dtype ? std::string(reshard::name(*dtype)) : "";
  }

  Index most_chains() const { return experts_apart_ ? 1 : dense_; }

  static bool same_group(FlatBuffer const& a, FlatBuffer const& b) {
    return std::tie(a.chain, a.group, a.where) == std::tie(b.chain, b.group, b.where);
  }

  SideOptions side_options(std::string const& form) const {
    SideOptions options{true,
                        mesh_,
                        {{"form", form},
                         {"spec", read_.facts.traits.spec},
                         {"mtp_block", read_.facts.traits.mtp_block},
                         {"release", megatron::release_of(read_.facts.args)}},
                        {},
                        {},
                        source_.place + ", args: "};
    megatron::add_names(options, read_.facts.traits.names);
    if (read_.facts.traits.padded_vocab > 0)
      options.padded_sizes["vocab"] = read_.facts.traits.padded_vocab;
    return options;
  }

  /// Where the ranks of a group stand. Dense weights are cut by pp and tp, experts by pp, ep and
  /// etp; groups are counted in this order. Experts that are in one optimizer with dense weights
  /// are those of the same ranks.
  MeshPlace place_of(Index chain, Index group) const {
    Index const inner = chain == dense_ ? sizes_.tp : Index{sizes_.ep} * sizes_.etp;
    Index const pp = group / inner;
    Index const rest = group % inner;
    if (pp >= sizes_.pp || chain < dense_ || chain > most_chains())
      fail(ErrorKind::source,
           "{}: optimizer {} has state of a group {}, and the layout of args ({}) has {} groups. "
           "Args were changed, or the files are of two saves: restore those of one, or set "
           "source.optimizer = \"drop\".",
           source_.place, chain, group, megatron::layout_text(sizes_),
           chain > 1 ? 0 : inner * sizes_.pp);
    if (chain == dense_)
      return megatron::place_of(mesh_, {.tp = narrow<int>(rest), .pp = narrow<int>(pp)});
    return mesh_.at({{"pp", pp}, {"ep", rest / sizes_.etp}, {"etp", rest % sizes_.etp}});
  }

  void place_group(std::span<FlatBuffer const> buffers, BufferShares& shares,
                   std::vector<Placed>& placed) const {
    FlatBuffer const& first = buffers.front();
    MeshPlace const place = place_of(first.chain, first.group);
    int const stage = narrow<int>(mesh_.coordinate(place, "pp"));
    auto const expected = shares.of(place, stage, first.chain != dense_);
    if (expected.size() != buffers.size())
      fail(ErrorKind::source,
           "{}: group {} of optimizer {} has {} buffers, and the layout of args ({}) gives {}. "
           "Args were changed, or weights are of more dtypes than their buffers: restore the "
           "checkpoint's own args, or set source.optimizer = \"drop\".",
           place_text(first), first.group, first.chain, buffers.size(),
           megatron::layout_text(sizes_), expected.size());
    for (std::size_t b = 0; b < buffers.size(); ++b)
      placed.push_back({buffers[b], expected[b],
                        buffers[b].joined ? by_rule(buffers[b], expected[b], stage, shares)
                                          : fitted(buffers[b], expected[b]),
                        place});
  }

  /// The file that has a buffer, or all of them.
  std::string const& place_text(FlatBuffer const& buffer) const {
    return buffer.where.empty() ? source_.place : buffer.where;
  }

  /// Buckets that lie end to end: their ends follow from args.
  FlatLayout by_rule(FlatBuffer const& buffer, BufferShare const& share, int stage,
                     BufferShares& shares) const {
    check_dtype(buffer, share);
    std::vector<FlatParameter> const parameters = shares.flat(share);
    Index const held = tensor(buffer.buckets.front().front()).shape.front();
    Index nearest = 0;
    for (megatron::FlatRule const& rule :
         megatron::flat_rules(read_.facts.args, {share.chunk == 0, shares.rank_elements(stage)})) {
      FlatLayout layout = megatron::flat_layout(parameters, rule);
      Index sum = 0;
      for (Index const bucket : layout.buckets) sum += bucket;
      if (sum == held) return layout;
      if (nearest == 0) nearest = sum;
    }
    fail(ErrorKind::source,
         "{}: buffer {} of optimizer {} has {} elements, and the {} that the layout of "
         "args ({}; {}) puts there have {}; no order known to this version gives this number. Args "
         "were changed, or parameters were frozen: restore the checkpoint's own args, name those "
         "parameters in model.frozen, or set source.optimizer = \"drop\".",
         place_text(buffer), buffer.number, buffer.chain, held,
         counted(parameters.size(), "parameter"), megatron::layout_text(sizes_),
         megatron::flat_rule_text(read_.facts.args), nearest);
  }

  StoredTensor tensor(std::size_t at) const { return source_.stored.tensors[at]; }

  FlatLayout fitted(FlatBuffer const& buffer, BufferShare const& share) const {
    check_dtype(buffer, share);
    std::vector<FlatParameter> parameters;
    Index sum = 0;
    for (RankParameter const& one : share.parameters) {
      parameters.push_back({one.elements});
      sum += one.elements;
    }
    std::vector<Index> buckets;
    Index held = 0;
    for (auto const& states : buffer.buckets) {
      buckets.push_back(tensor(states.front()).shape.front());
      held += buckets.back();
    }
    for (Index const alignment : alignments)
      if (auto layout = megatron::fitted_layout(parameters, buckets, alignment))
        if (starts_fit(buffer, *layout)) return *layout;
    fail(ErrorKind::source,
         "{}: '{}' and its other buckets have {} elements, and the {} that the layout "
         "of args ({}) puts there have {}; no order known to this version gives these buckets. "
         "Args were changed, or parameters were frozen: restore the checkpoint's own args, name "
         "those parameters in model.frozen, or set source.optimizer = \"drop\".",
         source_.place, tensor(buffer.buckets.front().front()).name, held,
         counted(parameters.size(), "parameter"), megatron::layout_text(sizes_), sum);
  }

  void check_dtype(FlatBuffer const& buffer, BufferShare const& share) const {
    auto const dtype = pickle::dtype_from_torch_name(buffer.weights);
    if (dtype && name(*dtype) == share.weights) return;
    fail(ErrorKind::source,
         "{}: '{}' holds state of {} weights, and the weights are stored as {}. State of weights "
         "that were trained in another dtype cannot be resharded: set source.optimizer = \"drop\".",
         place_text(buffer), tensor(buffer.buckets.front().front()).name, buffer.weights,
         share.weights);
  }

  /// Megatron saves every parameter of a rank as a chunk of its own.
  bool starts_fit(FlatBuffer const& buffer, FlatLayout const& layout) const {
    std::vector<std::vector<Index>> starts;
    for (auto const& states : buffer.buckets) {
      starts.emplace_back();
      for (StoredChunk const& chunk : source_.stored.chunks_of(tensor(states.front())))
        starts.back().push_back(source_.stored.offsets(chunk).front());
      std::ranges::sort(starts.back());
    }
    return std::ranges::all_of(layout.slots, [&](megatron::FlatSlot const& slot) {
      return std::ranges::binary_search(starts[slot.bucket], slot.at);
    });
  }

  void add(Placed const& placed, Side const& side, BufferShares const& shares) {
    for (std::size_t p = 0; p < placed.share.parameters.size(); ++p) {
      RankParameter const& parameter = placed.share.parameters[p];
      StoredName const& name = shares.name(placed.share, parameter);
      SidePlace const place{placed.place, &chunks_[placed.share.chunk]};
      megatron::FlatSlot const slot = placed.layout.slots[p];
      bool const joined = placed.buffer.joined;
      auto const& states = placed.buffer.buckets[joined ? 0 : slot.bucket];
      Index const at = joined ? placed.layout.in_file(slot) : slot.at;
      for (std::size_t s = 0; s < states.size(); ++s) {
        add_state(
            tensor(states[s]), {at, at + parameter.elements}, name,
            [&](Index begin, Index end) { return side.flat_pieces(name, place, begin, end); },
            SlotId(s + 1));
        for (TensorId const held : side.tensors(name.entry))
          model_.set_exists(model_.in_slot(held, SlotId(s + 1)), true);
      }
    }
  }

  /// The elements `slot` of a bucket, which chunks of it hold one after the other.
  template <class Pieces>
  void add_state(StoredTensor const& bucket, HalfOpen<Index> slot, StoredName const& name,
                 Pieces const& pieces_of, SlotId state) {
    for (std::size_t c = bucket.first_chunk; c < bucket.first_chunk + bucket.chunk_count; ++c) {
      StoredChunk const& chunk = source_.stored.chunks[c];
      Index const at = source_.stored.offsets(chunk).front();
      Index const begin = std::max(slot.begin, at);
      Index const end = std::min(slot.end, at + source_.stored.sizes(chunk).front());
      if (begin >= end) continue;
      std::vector<Piece> pieces = pieces_of(begin - slot.begin, end - slot.begin);
      for (Piece& piece : pieces) piece.tensor = model_.in_slot(piece.tensor, state);
      // A blob of the parameter's own elements: its pieces are at offset 0 then.
      auto const before = static_cast<std::uint64_t>((begin - at) * bits(bucket.dtype) / 8);
      read_.stored.catalog.add({chunk.item.file, source_.stored.payload_offset_bytes(c) + before,
                                bucket.dtype, bucket.name},
                               pieces, name.copy);
    }
  }

  Checkpoint const& source_;
  std::vector<std::string> const& frozen_;
  SourceModel& read_;
  Model& model_;
  megatron::MeshSizes sizes_;
  bool experts_apart_;  ///< in the run that saved
  /// The optimizer of dense weights: behind a layer-wise one, whose state is by name.
  Index dense_;
  std::vector<bool> named_;  ///< by TensorId: whether its state is by name
  Mesh mesh_;
  std::vector<PipelineChunk> chunks_;
  std::vector<std::optional<DType>> dtypes_;
};

}  // namespace

void add_flat_states(Checkpoint const& source, std::vector<std::string> const& frozen,
                     SourceModel& read) {
  FlatStates(source, frozen, read).run();
  read.stored.catalog.shrink();
}

}  // namespace reshard
