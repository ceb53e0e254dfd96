#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/mapping/sides/side.hpp"

namespace reshard {

/// Dtype and shape of a file's tensor of some name.
struct FoundTensor {
  DType dtype = DType::u8;
  std::vector<Index> shape;
};
using FindTensor = std::function<std::optional<FoundTensor>(std::string const&)>;

/// A stored weight that is there as parts: stored_parts[i] is the name of part i of the scheme, ""
/// for an optional one that is absent.
struct QuantMatch {
  std::size_t scheme = 0;  ///< in Model::schemes()
  std::vector<std::string> stored_parts;
};

/// What the parts of a weight are looked for.
enum class MatchFor {
  moving,  ///< parts become tensors of the model: their blocks must fit the axes of the weight
  values,  ///< values are computed from the stored matrix, whatever its axes are
};

/// The parts under a stored name, by names, dtypes and shapes; nothing when the weight is stored as
/// it is, or not at all.
std::optional<QuantMatch> match_quantised(Model const& model, Side const& side,
                                          StoredName const& name, SidePlace const& place,
                                          FindTensor const& find, MatchFor what);

struct QuantFault {
  std::string sentence;  ///< about its blocks
  bool has_values;       ///< values can be computed even so
};

/// Why a weight whose codes and scales are all there, by names and dtypes, is of no scheme. Nothing
/// where they are not there.
std::optional<QuantFault> quantised_fault(Model const& model, Side const& side,
                                          StoredName const& name, SidePlace const& place,
                                          FindTensor const& find);

/// The parts of schemes that stand beside a weight which is stored as it is (QuantScheme::beside);
/// a match for each scheme that has some.
std::vector<QuantMatch> match_beside(Model const& model, Side const& side, StoredName const& name,
                                     SidePlace const& place, FindTensor const& find, MatchFor what);

/// A logical tensor of the model that is a part of what weights are fused in (QuantPart::fused);
/// with `rows`, one whose rows lie rank by rank in global formats. Nothing where there is none.
std::optional<TensorId> find_fused_part(Model const& model, bool rows);

/// Finds out which weights of a checkpoint are quantised, in which layers, and gives the model
/// their parts.
class QuantFinder {
 public:
  /// Both outlive the finder. The model has its schemes already (Model::set_schemes).
  QuantFinder(Model const& model, Side const& side) : model_(model), side_(side) {}

  /// The stored names of one place, and what that place has. `place_name` is for messages.
  void look(SidePlace const& place, std::span<StoredName const> names, FindTensor const& find,
            std::string const& place_name);

  bool found() const { return !parts_.empty(); }
  /// Adds the parts that were found to the model, and takes the layers that have them from the
  /// weights. A layer whose stored tensors of one weight differ (some experts quantised, others
  /// not) is an Error of kind source. The side must be rebuilt then.
  void apply(Model& model) const;

 private:
  struct PartKey {
    TensorId tensor{};
    std::size_t scheme = 0;
    std::size_t part = 0;
    auto operator<=>(PartKey const&) const = default;
  };
  struct PartFound {
    std::vector<bool> layers;
    std::vector<LogicalAxis> axes;
  };
  /// How a layer of a weight is stored: the scheme, or none, and where that was seen first.
  struct Seen {
    std::optional<std::size_t> scheme;
    std::string name;
  };
  void note(TensorId tensor, StoredName const& name, std::optional<QuantMatch> const& match,
            std::string const& place_name);
  void note_parts(TensorId tensor, StoredName const& name, QuantMatch const& match,
                  std::vector<Index> const& layers);
  void note_part(PartKey const& key, StoredName const& name, std::vector<Index> const& layers);
  std::vector<Index> layers_of(StoredName const& name, TensorId tensor) const;
  std::string words(std::optional<std::size_t> scheme) const;

  Model const& model_;
  Side const& side_;
  std::map<PartKey, PartFound> parts_;
  std::map<std::pair<TensorId, Index>, Seen>
      seen_;  ///< by tensor and layer; -1 for a tensor without layers
};

}  // namespace reshard
