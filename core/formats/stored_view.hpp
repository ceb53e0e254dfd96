#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/tables/integers.hpp"

namespace reshard {

/// The names of a side with Megatron's names for a language model inside a larger one, and for its
/// other parts.
struct TrainerNames {
  std::string root;              ///< before all names of the language model: "language_model."
  std::string trainer;           ///< the names of the other parts: [kept.NAME] of a map; "": those
                                 ///< of Hugging Face
  std::string tower = "family";  ///< their tensors: "mcore", Megatron's own; "family", the family's
  bool tower_stacked = false;    ///< layers of Megatron's own vision tower are a leading axis
};

/// The properties of a model shown by Megatron's names.
struct NameTraits {
  std::string spec;  ///< "te" or "local": where norms are
  std::string form;  ///< form of experts: "grouped", "sequential", …; "" if no name shows it
  std::string mtp_block = "mtp_model_layer";  ///< the inner layer of multi-token prediction
  Index padded_vocab = 0;  ///< rows of the embedding over all ranks; 0: no embedding
  Index vocab_ranks = 0;   ///< over which they are distributed; 0: not shown by the names
  Index vocab_chunks = 0;  ///< into which they are cut, if files have chunks; else 0
  bool paired = false;     ///< attention and MLP of a layer are two layers of a hybrid model
  bool stacked = false;    ///< layers are a leading axis
  bool halves = false;     ///< gate and up have keys of their own
  bool chained = false;    ///< keys of state name one of several optimizers
  bool parts = true;       ///< the parts of a fused projection have keys of their own
  TrainerNames names;      ///< root and tower_stacked, shown by keys; the rest needs a map
};

/// In lists of states: the state is missing.
inline constexpr std::size_t no_tensor = static_cast<std::size_t>(-1);

/// A flat buffer of optimizer state: the part of one group of ranks in the parameters of one model
/// chunk and dtype, in an order that the layout of the save gives (megatron/flat_buffer.hpp).
struct FlatBuffer {
  Index chain = 0;      ///< number of the optimizer: 0 dense weights, 1 experts
  Index group = 0;      ///< of ranks that share weights, counted for each optimizer
  Index number = 0;     ///< of the buffer in its group
  std::string weights;  ///< dtype of the parameters, "bfloat16"
  std::string where;    ///< the file of a rank with it; "" if groups share all files
  bool joined = false;  ///< `buckets` has one entry: all buckets end to end
  /// One for each bucket: the places in StoredTable::tensors of its states, parallel to the first
  /// of StoredView::states. They are 1-D and of one size.
  std::vector<std::vector<std::size_t>> buckets;
};

/// Optimizer state of the parameters of one rank, in their shapes: under numbers, in groups that
/// have the same settings.
struct StateList {
  struct Group {
    bool decays = true;      ///< the weights decay
    bool decoupled = false;  ///< embedding and output layer, with a learning rate of their own
    /// Members in order of registration: the places in StoredTable::tensors of their states,
    /// parallel to StoredView::states; no_tensor if there is none.
    std::vector<std::vector<std::size_t>> members;
  };
  Index chain = 0;    ///< as FlatBuffer
  Index group = 0;    ///< as FlatBuffer
  std::string where;  ///< the file with it
  std::vector<Group> groups;
};

/// The stored tensors of a checkpoint, sorted by content.
struct StoredView {
  /// Stored names and their places in StoredTable::tensors.
  using Table = std::unordered_map<std::string, std::size_t>;

  Table weights;  ///< without their prefix; empty for Storage::shares, whose names repeat
  std::vector<std::string> states;       ///< slots of optimizer state that follow their weights:
                                         ///< "param", "exp_avg", …
  std::vector<Table> state_tables;       ///< parallel to `states`; keys are those of the weights.
                                         ///< Empty if the states are in `buffers` or `lists`; next
                                         ///< to `buffers` if those have only some weights' states
  std::vector<FlatBuffer> buffers;       ///< by chain, group, file and number
  std::vector<StateList> lists;          ///< state that is neither by name nor in buffers
  std::vector<std::string> fixed_state;  ///< other keys of optimizer state
  std::string state_fault;  ///< the reason for which those follow no weight, if known: a sentence
                            ///< without its dot
  std::vector<std::string> unread;  ///< weights whose keys do not begin with the prefix asked for
  NameTraits traits;                ///< of Megatron's names; not meaningful for others

  /// The table of a slot, which `states` has from now on.
  Table& table_of(std::string_view slot) {
    auto const at = static_cast<std::size_t>(std::ranges::find(states, slot) - states.begin());
    if (at == states.size()) states.emplace_back(slot);
    state_tables.resize(states.size());
    return state_tables[at];
  }
};

}  // namespace reshard
