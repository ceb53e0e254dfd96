#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/layout/layout_expr.hpp"
#include "core/layout/mesh.hpp"
#include "core/layout/pieces/piece_table.hpp"
#include "core/layout/pipeline_chunks.hpp"
#include "core/mapping/expressions/name_template.hpp"
#include "core/mapping/model.hpp"

namespace reshard {

/// How one side of a job stores the model.
struct SideOptions {
  bool local = false;  ///< files hold a rank's share and number from 0 (Megatron); else whole
                       ///< tensors (Hugging Face)
  Mesh mesh;  ///< local sides; sides with axes in front: sizes for padding, places for rank_rows()
  std::map<std::string, Json>
      options;  ///< values for the map's [options], e.g. form = "sequential"
  std::map<std::string, Index> padded_sizes;  ///< axis: its padded size, where the files say it
                                              ///< (source); else the rule's `pad`
  std::function<bool(std::string_view)>
      has;            ///< has('stored name'); absent: whether the model has that entry's tensors
  std::string place;  ///< for messages, before the name of a mesh axis: "[target] layout."
  bool in_front =
      false;  ///< a global side of Megatron (torch_dist, fsdp_dtensor): FrontAxis, padded axes
  std::string adapter = {};     ///< how adapters are named: one of Model::adapter_forms(); "": the
                                ///< side has none
  bool adapters_apart = false;  ///< adapters of weights that share a stored tensor are apart, where
                                ///< MapAdapter::parts has words for them
  bool lists_sizes = false;     ///< the mesh is what a job asks for: a size that does not fit is
                                ///< refused with all that do
};

/// One place of a local side: what one file of a pipeline chunk holds. A global side has one place,
/// the first of the mesh, with no chunk.
struct SidePlace {
  MeshPlace at;  ///< of SideOptions::mesh
  PipelineChunk const* chunk = nullptr;
};

/// An axis that a stored tensor has as a leading dimension of its own, because its names for
/// several indices are the same text: layer and expert of
/// "decoder.layers.mlp.experts.experts.linear_fc1.weight".
struct FrontAxis {
  AxisId axis = 0;
  std::vector<Run> runs;  ///< the indices that the dimension counts, ascending
};

/// A stored tensor's name in one place, and what it stands for. Equal for all files of a
/// chunk: numbers are positions in a share.
struct StoredName {
  std::string name;
  std::vector<std::string> aliases;  ///< other names that a reader accepts
  std::uint32_t entry = 0;           ///< index into the side's entries
  std::vector<Index> positions;  ///< one per name axis of the entry: index of the axis, or position
                                 ///< in its share when the mesh cuts it
  bool copy = false;  ///< holds what another stored tensor holds too: a reader does not need it
  std::vector<FrontAxis> front;  ///< outermost first; their first indices are in `positions`.
                                 ///< Empty unless SideOptions::in_front
};

/// Meaning of the bytes under a name in one place, without axes in front.
struct EntryLayout {
  Layout layout;                  ///< pieces without the digits of the name
  std::vector<Index> file_shape;  ///< as the file has it (a `view` may differ from layout.shape)
};

struct AxisRule;
struct SideEntry;

/// The map of one side, evaluated for one model: names, shapes and pieces of every stored tensor.
class Side {
 public:
  /// `model` and `map` must outlive the side. Mistakes of the map, sizes that the mesh does not
  /// divide, are Errors of kind usage.
  Side(Model const& model, MapFile const& map, SideOptions options);
  ~Side();
  Side(Side&&) noexcept;

  /// Every stored name of a place, layer by layer, in the map's order inside a layer. A name made
  /// twice is an Error of kind usage. Depends on the chunk alone; and on which tensors the model
  /// has. With axes in front, a name made for indices that are no full product (layer 0 with
  /// experts 0 and 1, layer 1 with expert 0) is an Error of kind usage.
  std::vector<StoredName> names(PipelineChunk const* chunk) const;
  /// Layout of an entry in a place; the reference stays valid as long as the side.
  EntryLayout const& layout(std::uint32_t entry, SidePlace const& place) const;
  /// The pieces of a stored tensor: those of the layout with the digits of the name and of the axes
  /// in front.
  std::vector<Piece> pieces(StoredName const& name, SidePlace const& place) const;
  /// The same as numbers: cheap for the thousandth file, whose layouts are known. Valid until the
  /// next call.
  std::span<InternedPiece const> interned_pieces(StoredName const& name,
                                                 SidePlace const& place) const;
  /// Local sides: the pieces of the elements [begin, end) of the row-major tensor that a place has
  /// under a name; offset 0 is element `begin`. A range beyond it is an Error of kind source.
  std::vector<Piece> flat_pieces(StoredName const& name, SidePlace const& place, Index begin,
                                 Index end) const;
  /// Global sides: the shape of the whole stored tensor, axes in front and padding included.
  std::vector<Index> shape(StoredName const& name) const;
  /// Global sides: the pieces of a box of the stored tensor, rows [begin[d], end[d]) of every
  /// dimension of shape(). Strides are row-major of the box, offset 0 is its first element. A box
  /// that leaves the tensor is an Error of kind source.
  std::vector<Piece> box_pieces(StoredName const& name, std::span<Index const> begin,
                                std::span<Index const> end) const;
  /// Global sides: the rows of every dimension of shape() that a rank of SideOptions::mesh holds by
  /// the rules of the map; padding is held by the ranks at the end. Where the name says the index
  /// of an axis that the mesh cuts, other ranks hold no rows of any dimension.
  std::vector<std::vector<Run>> rank_rows(StoredName const& name, SidePlace const& place) const;
  /// The shape that a part of a quantised weight has beside the stored tensor `name`, axes in front
  /// included; nothing where blocks do not fit.
  std::optional<std::vector<Index>> part_shape(StoredName const& name, QuantPart const& part,
                                               SidePlace const& place) const;
  /// Why it has none, as a sentence without its dot; "" where it has one.
  std::string part_fault(StoredName const& name, QuantPart const& part,
                         SidePlace const& place) const;
  /// The layout expression of the weight that the parts of an entry are made from, and what it
  /// means in a place: the weight as it is when its values are computed from the parts.
  LayoutExpr const& quantised_expression(std::uint32_t entry) const;
  EntryLayout quantised_layout(std::uint32_t entry, SidePlace const& place) const;
  /// Completes the pieces of an EntryLayout with the digits of a stored name without axes in front.
  void add_name_digits(StoredName const& name, SidePlace const& place,
                       std::vector<Piece>& pieces) const;
  /// The layers (or depths) of a tensor that a stored name stands for; nothing for a tensor without
  /// (Model::layer_axis).
  std::vector<Index> layers_of(StoredName const& name, TensorId tensor) const;
  /// Whether an entry's tensors are carried without being understood.
  bool as_it_is(std::uint32_t entry) const;
  /// The stored name of the weight that a part stands beside, of a name or an alias of an entry:
  /// where the entry stores a piece of a weight and the part belongs to all of it, without the
  /// piece's ending.
  std::string weight_name(std::uint32_t entry, std::string name, QuantPart const& part) const;
  /// The part of quantised weights that an entry stores: "fp8_block.scale"; "" for weights as they
  /// are.
  std::string const& part(std::uint32_t entry) const;
  /// Whether an entry is a matrix of an adapter.
  bool is_adapter(std::uint32_t entry) const;
  /// The logical tensors under an entry.
  std::vector<TensorId> const& tensors(std::uint32_t entry) const;
  /// The dtype an entry insists on, or nothing.
  std::optional<DType> cast(std::uint32_t entry) const;
  /// The same by logical tensor.
  std::vector<std::optional<DType>> casts() const;
  /// Summand of stored values beside logical ones, by logical tensor. Entries of one tensor that
  /// disagree are an Error of kind usage.
  std::vector<int> adds() const;
  /// "mcore.toml:47", for messages.
  std::string const& entry_place(std::uint32_t entry) const;
  /// The stored name of an entry as the map writes it, with prefixes joined ("{l}mlp.up.weight"),
  /// and its layout expression.
  std::string const& written_name(std::uint32_t entry) const;
  std::string const& written_layout(std::uint32_t entry) const;
  /// Logical tensors of entries that the model may lack whatever else it has (`optional = true`),
  /// in the map's order.
  std::vector<TensorId> optional_tensors() const;
  /// Those of entries whose `when` holds, or that have none.
  std::vector<TensorId> applying_tensors() const;
  /// Those of entries with a condition in `optional`: all of them, and those for which it holds
  /// with the tensors that the model has now.
  std::vector<TensorId> conditional_tensors() const;
  std::vector<TensorId> conditional_tensors_that_may_lack() const;
  /// Those that the model must have.
  std::vector<TensorId> required_tensors() const;
  bool dropped(std::string_view stored_name) const;
  /// Whether the map lists it among what has no logical tensor and can be copied.
  bool keeps(std::string_view stored_name) const;
  Mesh const& mesh() const;  ///< SideOptions::mesh
  /// The compiled form of an entry (side_entry.hpp), the rule by which ranks share one of its axes
  /// (null: none does), and a size that its expressions name: for those who compute places
  /// themselves.
  SideEntry const& compiled(std::uint32_t entry) const;
  AxisRule const* rank_rule(std::uint32_t entry, AxisId axis) const;
  std::optional<Index> named_size(std::string_view name) const;
  /// The size of an axis after padding on this side.
  Index padded_size(std::string_view axis) const;
  /// The indices that a place holds of an axis, all of them where no mesh axis cuts it; nothing
  /// when the model lacks the axis.
  std::optional<Run> held(std::string_view axis, SidePlace const& place) const;
  /// Whether the mesh divides all that it cuts, and cuts no block of a quantised weight.
  bool fits() const;
  /// Whether a rule of the map cuts an axis of the model along a mesh axis.
  bool cuts(std::string_view mesh_axis) const;
  /// "tp 0 · ep 1": the coordinates of a place along the mesh axes that cut axes of the model.
  std::string place_text(SidePlace const& place) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The sizes of a mesh axis of `options` with which Side::fits(), whatever the sizes of the others
/// are: of the divisors of `whole`, ascending.
std::vector<Index> fitting_sizes(Model const& model, MapFile const& map, SideOptions const& options,
                                 std::string_view mesh_axis, Index whole);

/// `present` of a map: marks the tensors that facts exclude as not existing. For models without a
/// family file.
void apply_present(Model& model, MapFile const& map);
/// Marks exactly the tensors that a family side's entries require (and may have) as existing.
void apply_family(Model& model, Side const& family);

}  // namespace reshard
