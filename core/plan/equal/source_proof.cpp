#include "core/plan/equal/source_proof.hpp"

#include "core/layout/pieces/join.hpp"
#include "core/plan/equal/alike_tensors.hpp"

namespace reshard {

void prove_whole(Model const& model, LogicalTensor const& tensor, Distinct const& distinct,
                 Catalog const& source) {
  auto const fault = tile(distinct.made(), model.domain(tensor), model.axes());
  if (!fault) return;
  if (fault->holders == 0 && tensor.slot != SlotId::weight)
    fail(ErrorKind::source,
         "source: '{}': nothing holds {}. Optimizer state of a rank is missing, or the "
         "parameter is frozen only in some places: restore the rank's file, or set "
         "source.optimizer = \"drop\" to continue without the optimizer.",
         tensor.name, fault->where);
  if (fault->holders == 0)
    fail(
        ErrorKind::source,
        "source: '{}': nothing holds {}. A file is missing from the checkpoint, or {} describes another model.",
        tensor.name, fault->where, model.origin());
  Blob const& a = source.blobs[distinct.blob(fault->a)];
  Blob const& b = source.blobs[distinct.blob(fault->b)];
  fail(
      ErrorKind::source,
      "source: '{}': {} stored places hold {}: '{}' in {} and '{}' in {}. Remove one of them, or check the parallel sizes in {}.",
      tensor.name, fault->holders, fault->where, a.name, source.files[a.file], b.name,
      source.files[b.file], model.origin());
}

void prove_source(Model const& model, Catalog const& source, std::size_t first, std::size_t step) {
  AlikeTensors alike(model, {&source, nullptr});
  for (std::size_t t = first; t < model.tensors().size(); t += step) {
    LogicalTensor const& tensor = model.tensor(TensorId(t));
    if (!model.exists(TensorId(t)) || alike.like(TensorId(t)) || model.volume(tensor) == 0)
      continue;
    Distinct const distinct = distinct_pieces(source.tensors[t], source);
    prove_whole(model, tensor, distinct, source);
    (void)element_bytes(distinct, source, tensor.name);
  }
}

std::uint64_t element_bytes(Distinct const& distinct, Catalog const& source,
                            std::string_view tensor) {
  Blob const& first = source.blobs[distinct.blob(0)];
  for (std::uint32_t const number : distinct.all->blobs()) {
    if (source.blobs.dtype(number) == first.dtype) continue;
    Blob const& blob = source.blobs[number];
    fail(
        ErrorKind::source,
        "source: '{}' is {} in '{}' ({}) and {} in '{}' ({}). Save the whole checkpoint with one dtype per tensor.",
        tensor, name(first.dtype), first.name, source.files[first.file], name(blob.dtype),
        blob.name, source.files[blob.file]);
  }
  if (bits(first.dtype) % 8 != 0)
    fail(ErrorKind::source,
         "{}: '{}' is {}, elements smaller than a byte cannot be resharded by this version.",
         source.files[first.file], first.name, name(first.dtype));
  return static_cast<std::uint64_t>(bits(first.dtype) / 8);
}

}  // namespace reshard
