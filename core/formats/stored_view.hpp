#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/integers.hpp"

namespace reshard {

/// How a side with Megatron's names calls a language model inside a larger one, and the parts
/// beside it.
struct TrainerNames {
  std::string root;              ///< before all names of the language model: "language_model."
  std::string trainer;           ///< whose names the other parts have: [kept.NAME] of a map; "":
                                 ///< those of Hugging Face
  std::string tower = "family";  ///< their tensors: "mcore", Megatron's own; "family", the family's
  bool tower_stacked = false;    ///< layers of Megatron's own vision tower are an axis in front
};

/// What Megatron's names say about how a model was built.
struct NameTraits {
  std::string spec;  ///< "te" or "local": where norms are
  std::string
      form;  ///< how experts are stored: "grouped", "sequential", …; "" where no name shows it
  std::string mtp_block = "mtp_model_layer";  ///< the inner layer of multi-token prediction
  Index padded_vocab = 0;  ///< rows of the embedding over all ranks; 0: no embedding
  Index vocab_ranks = 0;   ///< over which they are dealt; 0: the names do not tell
  Index vocab_chunks = 0;  ///< into which they are cut, where files hold chunks; else 0
  bool paired = false;     ///< attention and MLP of a layer are two layers of a hybrid model
  bool stacked = false;    ///< layers are an axis in front
  bool halves = false;     ///< gate and up have keys of their own
  bool chained = false;    ///< keys of state name one of several optimizers
  bool parts = true;       ///< so have the parts of a fused projection
  TrainerNames names;      ///< root and tower_stacked, which keys say; the rest needs a map
};

/// Among the states of something: that it lacks one.
inline constexpr std::size_t no_tensor = static_cast<std::size_t>(-1);

/// A flat buffer of optimizer state: what one group of ranks holds of the parameters of one model
/// chunk and dtype, in an order that the layout of the save gives (megatron/flat_buffer.hpp).
struct FlatBuffer {
  Index chain = 0;      ///< which of several optimizers: 0 dense weights, 1 experts
  Index group = 0;      ///< of ranks that share weights, counted for each optimizer
  Index number = 0;     ///< of the buffer in its group
  std::string weights;  ///< dtype of the parameters, "bfloat16"
  std::string where;    ///< the file of a rank that holds it; "" where groups share all files
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
    /// parallel to StoredView::states; no_tensor where there is none.
    std::vector<std::vector<std::size_t>> members;
  };
  Index chain = 0;    ///< as FlatBuffer
  Index group = 0;    ///< as FlatBuffer
  std::string where;  ///< the file that holds it
  std::vector<Group> groups;
};

/// The stored tensors of a checkpoint, sorted by what they hold.
struct StoredView {
  /// Stored names and their places in StoredTable::tensors.
  using Table = std::unordered_map<std::string, std::size_t>;

  Table weights;  ///< without their prefix; empty for Storage::shares, whose names repeat
  std::vector<std::string> states;       ///< slots of optimizer state that follow their weights:
                                         ///< "param", "exp_avg", …
  std::vector<Table> state_tables;       ///< parallel to `states`; keys are those of the weights.
                                         ///< Empty where the states lie in `buffers` or `lists`;
                                         ///< beside `buffers` where they hold some weights' alone
  std::vector<FlatBuffer> buffers;       ///< by chain, group, file and number
  std::vector<StateList> lists;          ///< state that is neither by name nor in buffers
  std::vector<std::string> fixed_state;  ///< other keys of optimizer state
  std::string state_fault;  ///< a sentence without its dot: why those follow no weight, where that
                            ///< is known
  std::vector<std::string> unread;  ///< weights whose keys do not begin with the prefix asked for
  NameTraits traits;                ///< of Megatron's names; not meaningful for others
};

}  // namespace reshard
