#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/dtype.hpp"
#include "core/base/text/json.hpp"
#include "core/layout/axis.hpp"
#include "core/layout/mesh.hpp"
#include "core/plan/catalog.hpp"
#include "core/plan/plan.hpp"

namespace reshard {

/// Properties of a box; flags of ViewBox.
inline constexpr std::uint32_t box_is_replica =
    1;  ///< another box holds the same elements, and a job reads that one
inline constexpr std::uint32_t box_is_copy = 2;  ///< the same by declaration (tied embeddings)
inline constexpr std::uint32_t box_has_gaps =
    4;  ///< its ranges are the smallest that hold its elements: between them lie others
inline constexpr std::uint32_t box_is_computed =
    8;  ///< the source stores other values, from which these are computed

/// One file's part of a tensor on one side: one range of indices per axis of the tensor, in
/// ViewSide::ranges.
struct ViewBox {
  std::uint32_t owner = 0;   ///< index into ViewSide::owners
  std::uint32_t stored = 0;  ///< the tensor's name in that file: index into LayoutView::stored
  std::uint32_t flags = 0;
  std::size_t first_range = 0;
  Index elements = 0;
};

/// A file with tensors, and what lies in it.
struct ViewOwner {
  std::string label;  ///< "tp0 pp1 ep0", or the file's name
  std::string file;   ///< its path inside the checkpoint
  MeshPlace at;       ///< its place on the mesh; empty where there is none
  std::uint64_t bytes = 0;
  std::uint64_t tensors = 0;  ///< of LayoutView::tensors
  std::string layers;         ///< "0-3, 8", "" for none
  std::string experts;
};

/// One checkpoint: the source or the target of a job, or the one that is shown.
struct ViewSide {
  std::string role;
  std::string path;
  std::string format;
  std::string layout;  ///< what there is to say beyond the mesh: "vpp 2 · etp 1"
  Mesh mesh;           ///< without axes where files have no places
  std::vector<ViewOwner> owners;
  std::vector<Run> ranges;
};

/// A weight, of one layer where there are layers.
struct ViewTensor {
  std::string name;
  std::optional<Index> layer;
  DType dtype = DType::u8;
  std::vector<std::string> axes;
  std::vector<Index> shape;
  std::array<std::vector<ViewBox>, 2> boxes;  ///< by side
};

/// Bytes that go from one file of the source to one of the target.
struct ViewFlow {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint64_t bytes = 0;
};

/// Where everything is: what `reshard view` shows.
struct LayoutView {
  std::string title;
  std::string made_by;
  std::string map;
  bool stored_names = false;  ///< tensors are the stored ones, not those of a model
  std::vector<std::string> warnings;
  std::vector<ViewSide> sides;  ///< one or two
  std::vector<std::string> stored;
  std::vector<ViewTensor> tensors;  ///< those without a layer first, then layer by layer
  std::vector<ViewFlow> flows;      ///< of two sides, by source and target
  Json job = {};                    ///< of a job: job_figures()
};

/// The indices of one axis that a piece has, in units of `axis.div`.
struct AxisRuns {
  std::vector<Run> runs;  ///< ascending, with gaps between them
  bool hull = false;      ///< one run that also has indices of others: there were too many
  Index count = 1;        ///< how many indices the piece has
};
AxisRuns part_of_axis(Piece const& piece, LogicalAxis const& axis);

/// Fills tensors, stored names and what the owners hold. `catalogs` are parallel to view.sides,
/// whose owners are the catalogues' real files. With view.stored_names layers and experts are read
/// from names. Errors of kind usage: more than a page can hold.
void add_tensors(LayoutView& view, Model const& model, std::vector<Catalog const*> const& catalogs,
                 std::size_t most_tensors = 1'000'000);

/// Bytes that the plan moves from file to file; a computed tensor's bytes come from the file that
/// holds its values.
std::vector<ViewFlow> flows_of(Plan const& plan, Catalog const& source);

/// "decoder.layers.7.mlp.experts.12.weight" has layer 7 and expert 12.
struct NumbersInName {
  std::optional<Index> layer;
  std::optional<Index> expert;
};
NumbersInName numbers_in_name(std::string_view name);

/// Sorted numbers as text: "0-3, 8".
std::string ranges_text(std::vector<Index> const& sorted);

/// The one document behind the page and `--json` (docs/layout-pictures.md), on one line.
std::string layout_json(LayoutView const& view);

}  // namespace reshard
