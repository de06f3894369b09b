// The page's own shapes; those of the server's answers are written from its OpenAPI document (`shapes.py`).
declare namespace Page {
  type Child = Node | string | number | null | undefined | false | Child[];
  /** Where errors are shown, as `problemPlace` makes it. */
  type Place = { element: HTMLElement; show(error: any): void; clear(): void };
  type Size = { width: number; height: number };
  type Point = [number, number];
  /** A face of a photo with what is drawn at it. */
  type Boxed = { box: Api.Box; kind: string; label?: any; detail?: any; number?: any };
  type Heard = { onpick?: ((index: number) => void) | null; onpoint?: ((index: number | null) => void) | null };
  type Spot = { left: number; top: number; width: number; height: number };
  /** A file that somebody chose, and its path below the folder that was chosen. */
  type Chosen = { file: File; name: string };
  type Option = readonly string[];
  type Fact = readonly any[];
  type Axis = { min: number; max: number; log?: boolean; label?: string; ticks?: any[] };
  type Chart = { title?: string; words?: string; series: any[]; x: any; y: any };
  type Identified = Api.IdentifiedFace & { index: number };
  /** A photo that was asked about: its picture where the browser can show it, and the answer. */
  type Shot = { picture: any; photo: Blob; answer: Omit<Api.IdentifyAnswer, "faces"> & { faces: Identified[] } };
  /** A photo of an enrollment. */
  type Photo = Chosen & { subject: string; face?: number; url?: string };
  type View = { element: HTMLElement; ready?: Promise<unknown>; leave?: () => void };
}
