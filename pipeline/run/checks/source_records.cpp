#include "pipeline/run/checks/source_records.hpp"

#include <string>
#include <vector>

#include "core/base/hash/crc32.hpp"
#include "core/base/text/text.hpp"
#include "core/transport/gathered_texts.hpp"
#include "pipeline/records/record_comparer.hpp"

namespace reshard {

std::size_t check_source_records(Checkpoint const& source, Catalog const& catalog,
                                 WorkAccount const& account, Comm const& comm) {
  std::size_t const count = source.records.size();
  if (count == 0) return 0;
  auto const first_of = [&](int rank) {
    return count * static_cast<std::size_t>(rank) / static_cast<std::size_t>(comm.size());
  };
  RecordComparer comparer(source, catalog);
  together(comm, [&] {
    for (std::size_t r = first_of(comm.rank()); r < first_of(comm.rank() + 1); ++r) {
      StoredRecord const& record = source.records[r];
      if (account.record_covered()[r] != covered_by(0, record.size_bytes)) continue;
      comparer.compare(record, crc32_of_zeros(record.size_bytes) ^ account.record_crc32()[r]);
    }
  });
  std::vector<std::string> const faults = gathered_texts(comparer.faults(), comm);
  together(comm, [&] {
    if (faults.empty()) return;
    fail(ErrorKind::source,
         "the source's bytes are not those that were saved: {}. Nothing was published. Restore "
         "these files from a copy; or, if the bytes are correct anyway, set source.verify = "
         "\"off\".",
         listed(faults, 8));
  });
  return static_cast<std::size_t>(comm.sum(static_cast<std::int64_t>(comparer.compared())));
}

}  // namespace reshard
