#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/layout/pieces/piece.hpp"
#include "core/mapping/model.hpp"
#include "core/plan/catalog.hpp"

namespace reshard {

/// A unit of counting: a logical tensor, or one layer of it.
struct TensorPart {
  std::uint32_t tensor = 0;
  std::optional<Index> layer = std::nullopt;  ///< set if layers are the tensor's first axis
};
/// The parts of all tensors that exist, by tensor and layer.
std::vector<TensorPart> parts_of(Model const& model);
/// The number of parts of one tensor.
std::uint64_t part_count(Model const& model, std::uint32_t tensor);

/// Contiguous elements of a file that belong to one piece of one part.
struct StoredRun {
  std::uint32_t part = 0;    ///< of parts_of()
  std::uint32_t tensor = 0;  ///< of the model
  std::uint32_t piece = 0;   ///< of Catalog::tensors[tensor]
  std::uint32_t blob = 0;
  Index element = 0;     ///< of the blob: the first of the run
  Index elements = 0;    ///< from that one to the end of the run
  bool replica = false;  ///< another piece with the same elements counts
  bool ascending =
      true;  ///< within the run, later elements have larger places in the logical tensor
};

/// The location of an element in a file.
struct StoredElement {
  std::uint32_t blob = 0;
  std::uint64_t offset_bytes = 0;  ///< in the blob's file
};

/// Maps bytes of a checkpoint to elements of logical tensors, and back. A place is the number of an
/// element in its logical tensor, row-major over the domain of its axes (logical_shape()). Used by
/// one thread; model and catalogue must outlive it.
class StoredPlaces {
 public:
  /// Tensors that do not exist in the model are left out, and so are dtypes with elements smaller
  /// than a byte.
  StoredPlaces(Model const& model, Catalog const& catalog);

  std::size_t part_count() const { return part_count_; }

  /// The run that begins at this byte; an internal Error unless it is the first byte of an element
  /// of a piece.
  StoredRun run_at(std::uint32_t file, std::uint64_t offset_bytes) const;

  /// The offset of the element that contains this byte. A byte of no piece is an internal Error.
  std::uint64_t begin_of_element(std::uint32_t file, std::uint64_t offset_bytes) const;

  /// The place of an element of a piece. Pre: the piece contains it.
  std::uint64_t place_of(std::uint32_t tensor, std::uint32_t piece, Index element) const;

  /// The index along each axis of the tensor, as the axis counts: of layers 4 to 7, the first is 4.
  std::vector<Index> indices_at(std::uint32_t tensor, std::uint64_t place) const;

  /// The location of that element in the catalogue; of several replicas the one that plans read.
  /// nullopt if no piece contains it.
  std::optional<StoredElement> find(std::uint32_t tensor, std::vector<Index> const& indices) const;

  /// "layer 3, head 2", or "[3, 2]" if the model has no names of axes.
  std::string text_of(std::uint32_t tensor, std::vector<Index> const& indices) const;

 private:
  /// A stride of a piece that is walked: a digit, or a repeat of its values.
  struct Step {
    Index stride = 0;
    Index count = 1;
    std::size_t axis = 0;  ///< number of the tensor's axis; no_axis for a repeat
    Index weight = 0;      ///< increment of the axis' index per step, in units of the axis' div
  };
  static constexpr std::size_t no_axis = static_cast<std::size_t>(-1);

  /// The steps of a piece, from the longest stride to the shortest.
  struct PieceSteps {
    std::uint32_t tensor = 0;
    std::uint32_t piece = 0;
    Index offset = 0;
    std::vector<Step> steps;
    std::vector<Index> first;  ///< index of each axis at the piece's first element
    std::size_t inner = 0;     ///< number of the first step of those that make up a block
    Index block = 1;           ///< contiguous elements
    bool replica = false;
    bool ascending = true;
  };
  struct Holder {
    std::uint32_t blob = 0;
    std::uint32_t tensor = 0;
    std::uint32_t piece = 0;
    bool replica = false;
  };
  /// The bytes of a file that a blob's pieces reach.
  struct Stretch {
    std::uint32_t file = 0;
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t furthest = 0;  ///< largest end of this and all stretches of the file before it
    std::uint32_t blob = 0;
  };

  void add_tensor(std::uint32_t tensor);
  void sort_stretches();
  PieceSteps steps_of(Holder const& holder) const;
  std::vector<PieceSteps> const& pieces_in(std::uint32_t blob) const;
  /// The run whose first element contains the byte; nullopt if there is none.
  std::optional<StoredRun> run_with(std::uint32_t file, std::uint64_t offset_bytes) const;
  std::optional<StoredRun> run_in(Stretch const& stretch, std::uint64_t offset_bytes) const;
  /// An element of a piece.
  struct Walked {
    std::vector<Index> indices;  ///< along the tensor's axes
    Index in_block = 0;          ///< elements of the block before it
    bool repeated = false;       ///< in a repeat after the first
  };
  /// False if the piece does not contain the element.
  static bool walk(PieceSteps const& piece, Index element, Walked& walked);
  std::uint64_t row_major(std::uint32_t tensor, std::vector<Index> const& indices) const;
  std::uint64_t begin_of(StoredRun const& run) const;
  std::size_t element_bytes(std::uint32_t blob) const;

  Model const& model_;
  Catalog const& catalog_;
  std::vector<std::vector<DomainAxis>> domains_;  ///< by tensor
  std::vector<std::uint32_t> first_part_;         ///< by tensor
  std::vector<bool> by_layer_;                    ///< by tensor: its parts are layers
  std::size_t part_count_ = 0;
  std::vector<Holder> holders_;     ///< by blob
  std::vector<Stretch> stretches_;  ///< by file and begin
  mutable std::uint32_t known_blob_ = std::numeric_limits<std::uint32_t>::max();
  mutable std::vector<PieceSteps> known_pieces_;  ///< of that blob
  mutable std::size_t last_piece_ = 0;            ///< index of the piece in which the last element
                                                  ///< was found
};

}  // namespace reshard
