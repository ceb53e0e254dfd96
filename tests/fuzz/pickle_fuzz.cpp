// A bare pickle, as data.pkl holds it: the document survives being written and read again, and what
// the filter of carried calls lets pass calls nothing that an independent reader of the written
// pickle calls harmful.

#include "tests/fuzz/pickle_mutator.hpp"
#include "tests/fuzz/torch_document.hpp"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  using namespace reshard;
  std::size_t consumed = 0;
  auto const document = fuzz::accepted(ErrorKind::source, [&] {
    return pickle::parse(fuzz::bytes_of(fuzz::text_of(data, size)), "fuzz", &consumed,
                         fuzz::small_limits);
  });
  if (!document) return 0;
  FUZZ_EXPECT(consumed <= size);
  fuzz::expect_stable(*document);
  fuzz::expect_harmless(*document);
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t most, unsigned seed) {
  return reshard::fuzz::mutate_pickle(data, size, most, seed);
}
